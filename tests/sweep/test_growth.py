"""A study that grows: more seeds and more rounds compute only what is new."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pytest
import torch
from helpers.sweeps_here import go, rows_of, search

from raysafl import (
    SAFARI,
    FedAvg,
    LocalTraining,
    Patience,
    PerClient,
    Run,
    Sweep,
    load_model,
)
from raysafl.algorithms import SCAFFOLD, FedAvgM, Key, Round, State
from raysafl.core.rates import CosineRate
from raysafl.storage.store import Store
from raysafl.sweep.outcome import Outcome

ACCEPTANCE = pytest.mark.acceptance


class Counted(FedAvg):
    """FedAvg that counts the rounds that are computed, by seed, and stops in one of them."""

    computed: ClassVar[Counter[tuple[int, int]]] = Counter()
    at: ClassVar[int] = -1
    error: ClassVar[type[BaseException]] = KeyboardInterrupt

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        # The size of a pack is estimated from a model of few parameters.
        if len(state.w_P) > 100:
            if self.at == key.round:
                raise self.error
            self.computed[key.seed, key.round] += 1
        return super().round(state, ids, key)


@pytest.fixture(autouse=True)
def _begin_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    Counted.computed.clear()
    monkeypatch.setattr(Counted, "at", -1)


def interrupted(at: int, out: Path, *runs: Run, **options: Any) -> None:
    """A sweep that Ctrl-C ends in a round, after each round was saved."""
    Counted.at = at
    with pytest.raises(KeyboardInterrupt):
        carry_out(out, *runs, flush_seconds=0.0, **options)
    Counted.at = -1
    Counted.computed.clear()


def sweep_of(*runs: Run) -> Sweep:
    return Sweep("growing", {(k,): run for k, run in enumerate(runs)}, axes=("number",))


def carry_out(out: Path, *runs: Run, **options: Any) -> tuple[Outcome, str]:
    """A round that is tried would be counted, too."""
    return go(sweep_of(*runs), out, try_first=False, **options)


def alone(tmp_path: Path, *runs: Run) -> Outcome:
    return carry_out(tmp_path / "alone", *runs)[0]


def assert_equal(grown: Outcome, expected: Outcome) -> None:
    """Rows, clients, table and end of the runs are those of a sweep that began with them."""
    ids = [entry.run_id for entry in expected.manifest.entries]
    stores = grown.store, expected.store
    found, due = (s.rounds(ids).drop(columns="seconds") for s in stores)
    pd.testing.assert_frame_equal(found, due)
    found, due = (s.clients(ids) for s in stores)
    pd.testing.assert_frame_equal(found, due)
    unlike = ["seconds", "started", "ended", "commit", "sweep"]
    tables = [
        out.runs.drop(columns=unlike, errors="ignore") for out in (grown, expected)
    ]
    pd.testing.assert_frame_equal(*tables)


def test_of_four_seeds_only_those_are_computed_that_two_seeds_had_not(
    tiny: Run, tmp_path: Path
) -> None:
    two = tiny.replace(algorithm=Counted(), replicates=2, seed=5)
    first, _ = carry_out(tmp_path / "s", two)
    old = rows_of(first)
    Counted.computed.clear()
    four = two.replace(replicates=4)
    grown, said = carry_out(tmp_path / "s", four)
    assert grown.ok
    assert set(Counted.computed) == {(s, t) for s in (7, 8) for t in range(two.rounds)}
    assert "1 run of the sweep grew from stored ones; 2 replicates reused" in said
    new = grown.store.rounds(four.id).drop(columns="seconds")
    both = new[new["replicate"] < 2].drop(columns="run_id")
    pd.testing.assert_frame_equal(both, old.drop(columns="run_id"))
    assert_equal(grown, alone(tmp_path, four))


def test_seeds_may_come_before_and_from_several_runs(tiny: Run, tmp_path: Path) -> None:
    base = tiny.replace(algorithm=Counted(), replicates=1)
    parts = [base.replace(seed=seed) for seed in (3, 5)]
    carry_out(tmp_path / "s", *parts)
    Counted.computed.clear()
    whole = base.replace(seed=2, replicates=4)
    grown, _ = carry_out(tmp_path / "s", whole)
    assert {seed for seed, _ in Counted.computed} == {2, 4}
    assert_equal(grown, alone(tmp_path, whole))


def test_seeds_that_are_added_have_the_partitions_of_a_whole_run(
    tiny: Run, tmp_path: Path
) -> None:
    base = tiny.replace({"algorithm": Counted(), "data.partition_seeds": 2, "seed": 5})
    carry_out(tmp_path / "s", base.replace(replicates=2))
    Counted.computed.clear()
    four = base.replace(replicates=4, seed=4)
    grown, _ = carry_out(tmp_path / "s", four)
    assert {seed for seed, _ in Counted.computed} == {4, 7}
    assert_equal(grown, alone(tmp_path, four))


@pytest.mark.parametrize("keep", [pytest.param("last", marks=ACCEPTANCE), "best"])
def test_kept_models_clients_and_patience_grow_with_the_seeds(
    tiny: Run, tmp_path: Path, keep: str
) -> None:
    changes: Mapping[str, Any] = {
        "keep": keep,
        "eval_clients": PerClient(on="labels", every=2),
        "patience": Patience(rounds=2, metric="test_loss", min_delta=0.5),
        "rounds": 8,
    }
    two = tiny.replace(replicates=2, **changes)
    carry_out(tmp_path / "s", two)
    four = two.replace(replicates=4)
    grown, _ = carry_out(tmp_path / "s", four)
    expected = alone(tmp_path, four)
    assert_equal(grown, expected)
    reasons = [end.reason for end in grown.store.ledger()[four.id].replicates]
    assert any(reasons)
    for r in range(4):
        own, other = (load_model(out.store.path, four, r) for out in (grown, expected))
        for a, b in zip(own.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    "algorithm",
    [
        SCAFFOLD(),
        *(pytest.param(one, marks=ACCEPTANCE) for one in (FedAvgM(), SAFARI())),
    ],
)
def test_more_rounds_go_on_from_kept_states_with_the_rows_of_all_rounds_at_once(
    tiny: Run, tmp_path: Path, algorithm: FedAvg
) -> None:
    clients = PerClient(on="labels", every=4)
    short = tiny.replace(
        algorithm=algorithm, rounds=8, keep="best", eval_clients=clients, eval_every=2
    )
    carry_out(tmp_path / "s", short, keep_states=True)
    long = short.replace(rounds=12, replicates=3)
    grown, said = carry_out(tmp_path / "s", long)
    assert "2 replicates continued from where earlier runs were" in said
    assert_equal(grown, alone(tmp_path, long))


def test_more_rounds_go_on_from_the_checkpoint_of_a_run_that_was_interrupted(
    tiny: Run, tmp_path: Path
) -> None:
    short = tiny.replace(algorithm=Counted(), rounds=4)
    interrupted(3, tmp_path / "s", short)
    store = Store(tmp_path / "s")
    state = store.resume(short.id)
    assert state is not None and state.about["spent"] > 0
    store.flush(short.id, replace(state, about={**state.about, "spent": 1e6}))
    long = short.replace(rounds=6)
    grown, _ = carry_out(tmp_path / "s", long)
    assert {t for _, t in Counted.computed} == {3, 4, 5}
    assert (grown.store.ledger()[long.id].seconds or 0) > 1e6
    assert_equal(grown, alone(tmp_path, long))


@pytest.mark.parametrize("is_forgotten", [pytest.param(False, marks=ACCEPTANCE), True])
def test_a_study_may_grow_in_seeds_and_then_in_rounds(
    tiny: Run, tmp_path: Path, is_forgotten: bool
) -> None:
    two = tiny.replace(algorithm=Counted(), rounds=3)
    carry_out(tmp_path / "s", two, keep_states=True)
    four = two.replace(replicates=4)
    carry_out(tmp_path / "s", four, keep_states=True)
    if is_forgotten:
        Store(tmp_path / "s").forget([two.id])
    Counted.computed.clear()
    long = four.replace(rounds=6)
    grown, _ = carry_out(tmp_path / "s", long)
    assert {t for _, t in Counted.computed} == {3, 4, 5}
    assert_equal(grown, alone(tmp_path, long))


def test_what_was_reused_without_a_state_is_no_state_to_go_on_from(
    tiny: Run, tmp_path: Path
) -> None:
    """The run of four seeds was interrupted, and its first two seeds had only their rows."""
    two = tiny.replace(algorithm=Counted(), rounds=3)
    carry_out(tmp_path / "s", two)
    four = two.replace(replicates=4)
    interrupted(2, tmp_path / "s", four)
    long = four.replace(rounds=6)
    grown, said = carry_out(tmp_path / "s", long)
    assert "2 replicates computed from the first round" in said
    assert_equal(grown, alone(tmp_path, long))


def test_a_round_that_was_evaluated_as_the_last_one_is_not_in_a_longer_run(
    tiny: Run, tmp_path: Path
) -> None:
    one = tiny.replace(algorithm=Counted(), rounds=3, replicates=1, eval_every=2)
    carry_out(tmp_path / "s", one, keep_states=True)
    three = one.replace(replicates=3)
    interrupted(2, tmp_path / "s", three)
    Store(tmp_path / "s").forget([one.id])
    long = three.replace(rounds=6)
    grown, _ = carry_out(tmp_path / "s", long)
    assert_equal(grown, alone(tmp_path, long))


def test_nothing_is_reused_where_a_rule_stops_runs(tiny: Run, tmp_path: Path) -> None:
    two = tiny.replace(algorithm=Counted())
    carry_out(tmp_path / "s", two)
    Counted.computed.clear()
    four = two.replace(replicates=4)
    _, said = search(sweep_of(four), tmp_path / "s", stop={"round": 3})
    assert "replicates reused" not in said
    assert set(Counted.computed) == {(s, t) for s in range(4) for t in range(4)}


def test_the_ledger_names_the_runs_from_which_a_run_grew(
    tiny: Run, tmp_path: Path
) -> None:
    carry_out(tmp_path / "s", tiny)
    more = tiny.replace(replicates=3)
    grown, _ = carry_out(tmp_path / "s", more)
    assert grown.store.ledger()[more.id].grown_from == [tiny.id]


def test_a_diverged_replicate_stays_diverged(tiny: Run, tmp_path: Path) -> None:
    wild = tiny.replace(local=LocalTraining(lr=3e38, batch_size=4, steps=3))
    first, _ = carry_out(tmp_path / "s", wild)
    more = wild.replace(replicates=wild.replicates + 1)
    grown, _ = carry_out(tmp_path / "s", more)
    assert not first.ok
    assert_equal(grown, alone(tmp_path, more))


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({}, {}, "the states after their 3 rounds were not kept"),
        (
            {"eval_every": 2},
            {"keep_states": True},
            "was evaluated only because it was the last",
        ),
        (
            {"local.schedule": CosineRate()},
            {"keep_states": True},
            "learning rates depend on the number of rounds",
        ),
    ],
)
def test_what_would_differ_from_all_rounds_at_once_begins_anew_and_says_why(
    tiny: Run,
    tmp_path: Path,
    changes: Mapping[str, Any],
    options: Mapping[str, Any],
    why: str,
) -> None:
    short = tiny.replace({"algorithm": Counted(), "rounds": 3, **changes})
    carry_out(tmp_path / "s", short, **options)
    Counted.computed.clear()
    long = short.replace(rounds=5)
    grown, said = carry_out(tmp_path / "s", long)
    assert why in said
    assert {t for _, t in Counted.computed} == {0, 1, 2, 3, 4}
    assert_equal(grown, alone(tmp_path, long))


def test_nothing_is_taken_over_of_another_configuration_or_of_damaged_rows(
    tiny: Run, tmp_path: Path
) -> None:
    run = tiny.replace(algorithm=Counted(), replicates=1)
    carry_out(tmp_path / "s", run)
    Counted.computed.clear()
    _, said = carry_out(tmp_path / "s", run.replace({"local.lr": 0.2, "replicates": 2}))
    assert "grew" not in said and len(Counted.computed) == 2 * run.rounds
    store = Store(tmp_path / "s")
    for file in store.rounds_path.glob("*.parquet"):
        file.write_bytes(file.read_bytes()[:-20])
    Counted.computed.clear()
    with pytest.warns(UserWarning, match="cannot be read"):
        carry_out(tmp_path / "s", run.replace(replicates=3))
    assert len(Counted.computed) == 3 * run.rounds


def test_a_grown_run_that_is_interrupted_goes_on_with_all_of_its_rows(
    tiny: Run, tmp_path: Path
) -> None:
    clients = PerClient(on="labels", every=2)
    two = tiny.replace(algorithm=Counted(), eval_clients=clients, rounds=4)
    carry_out(tmp_path / "s", two)
    four = two.replace(replicates=4)
    interrupted(3, tmp_path / "s", four)
    grown, _ = carry_out(tmp_path / "s", four)
    assert_equal(grown, alone(tmp_path, four))
    assert set(grown.store.clients(four.id)["replicate"]) == {0, 1, 2, 3}
