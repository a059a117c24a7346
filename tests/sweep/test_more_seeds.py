"""A sweep of more or fewer seeds: only what is new is computed, and all else stays as it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.counted import Counted, interrupted
from helpers.folders import contents
from helpers.sweeps_here import go, search

from raysafl import Patience, PerClient, Run, Sweep, load_model
from raysafl.algorithms import FedAvg, Key, Round, State
from raysafl.storage.ledger import Status
from raysafl.sweep.outcome import Outcome

pytestmark = pytest.mark.usefixtures("counting")


def sweep_of(*runs: Run) -> Sweep:
    return Sweep("growing", {(k,): run for k, run in enumerate(runs)}, axes=("number",))


def carry_out(out: Path, *runs: Run, **options: Any) -> tuple[Outcome, str]:
    return go(sweep_of(*runs), out, **options)


def rows(outcome: Outcome) -> tuple[pd.DataFrame, pd.DataFrame]:
    store = outcome.store
    return store.rounds().drop(columns="seconds"), store.clients()


def assert_equal(grown: Outcome, expected: Outcome) -> None:
    """Rows, clients and table are those of a sweep that began with these runs."""
    for own, due in zip(rows(grown), rows(expected), strict=True):
        pd.testing.assert_frame_equal(own, due)
    unlike = ["seconds", "started", "ended", "commit", "sweep"]
    tables = [
        out.runs.drop(columns=unlike, errors="ignore") for out in (grown, expected)
    ]
    pd.testing.assert_frame_equal(*tables)


def test_of_four_seeds_only_those_are_computed_that_two_seeds_had_not(
    tiny: Run, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "algorithm": Counted(),
        "data.partition_seeds": 2,
        "keep": "best",
        "eval_clients": PerClient(on="labels", every=2),
        "patience": Patience(rounds=2, metric="test_loss", min_delta=0.5),
        "rounds": 8,
    }
    two = tiny.replace({**changes, "replicates": 2, "seed": 5})
    first, _ = carry_out(tmp_path / "s", two)
    before = first.store.rounds()
    Counted.computed.clear()
    four = two.replace(replicates=4)
    grown, said = carry_out(tmp_path / "s", four)
    assert grown.ok and {seed for seed, _ in Counted.computed} == {7, 8}
    assert "2 of their 4 seeds are there" in said
    # The run keeps its id, and the rows their seconds.
    assert four.id == two.id
    after = grown.store.rounds()
    pd.testing.assert_frame_equal(
        after[after["replicate"] < 2].reset_index(drop=True), before, check_exact=True
    )
    alone, _ = carry_out(tmp_path / "alone", four)
    assert_equal(grown, alone)
    for r in range(4):
        own, due = (load_model(out.store.path, four, r) for out in (grown, alone))
        for a, b in zip(own.parameters(), due.parameters(), strict=True):
            assert a.equal(b)


def test_fewer_seeds_compute_nothing_and_the_others_come_back_with_them(
    tiny: Run, tmp_path: Path
) -> None:
    four = tiny.replace(algorithm=Counted(), replicates=4)
    carry_out(tmp_path / "s", four)
    parts = contents(tmp_path / "s" / "rounds")
    Counted.computed.clear()
    fewer, said = carry_out(tmp_path / "s", four.replace(replicates=2))
    assert fewer.ok and not Counted.computed and "1 run was finished before" in said
    assert len(fewer.runs) == 2 and len(fewer.store.rounds()) == 2 * four.rounds
    again, _ = carry_out(tmp_path / "s", four)
    assert not Counted.computed and len(again.runs) == 4
    assert contents(tmp_path / "s" / "rounds") == parts


def test_seeds_that_several_runs_share_are_computed_once(
    tiny: Run, tmp_path: Path
) -> None:
    """The second run is a part of the first, the third overlaps with it."""
    base = tiny.replace(algorithm=Counted())
    runs = [
        base.replace(replicates=3, seed=2),
        base.replace(replicates=1, seed=3),
        base.replace(replicates=3, seed=4),
    ]
    outcome, said = carry_out(tmp_path / "s", *runs)
    assert outcome.ok and "3 runs to do" in said and "[3/3]" in said
    assert "are there" not in said
    each = {(seed, t): 1 for seed in range(2, 7) for t in range(base.rounds)}
    assert Counted.computed == each
    assert outcome.runs["run_id"].value_counts().to_dict() == {
        run.id: run.replicates for run in runs
    }
    assert outcome.shown == {run.id for run in runs}
    for run in runs:
        own, _ = carry_out(tmp_path / run.id, run)
        found = outcome.store.rounds(run.id).drop(columns="seconds")
        pd.testing.assert_frame_equal(found, rows(own)[0])


class FailsOnce(FedAvg):
    """FedAvg that raises an error in the third round of one seed while it is told to."""

    fails: bool = True

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if FAILING and key.seed == 1 and key.round == 2:
            raise RuntimeError("a user's mistake")
        return super().round(state, ids, key)


FAILING: list[bool] = []


def test_one_seed_that_fails_makes_its_run_failed_and_it_alone_is_tried_again(
    tiny: Run, tmp_path: Path
) -> None:
    clients = PerClient(on="labels", every=1)
    run = tiny.replace(algorithm=FailsOnce(), replicates=3, eval_clients=clients)
    FAILING.append(True)
    outcome, said = carry_out(tmp_path / "s", run)
    FAILING.clear()
    assert not outcome.ok and not outcome.missing and "1 failed" in repr(outcome)
    assert "number=0: failed, 1 of 3 seeds: " in said
    assert outcome.runs["status"].tolist() == ["finished", "failed", "finished"]
    assert outcome.store.read().runs[run.id].status is Status.FAILED
    end = outcome.store.ledger()[run.cell_ids[1]]
    assert "a user's mistake" in end.reason and end.traceback
    assert end.seconds > 0 and end.started <= end.ended
    # What it has measured up to there is kept.
    counts = {0: 4, 1: 2, 2: 4}
    for table in rows(outcome):
        measured = table.groupby("replicate")["round"].nunique()
        assert measured.to_dict() == counts
    before = outcome.store.rounds().query("replicate != 1").reset_index(drop=True)
    again, _ = carry_out(tmp_path / "s", run)
    assert again.ok and again.skipped == 0
    assert_equal(again, carry_out(tmp_path / "alone", run)[0])
    after = again.store.rounds().query("replicate != 1").reset_index(drop=True)
    pd.testing.assert_frame_equal(after, before, check_exact=True)


def test_rules_to_stop_do_not_compute_again_what_they_have_stopped(
    tiny: Run, tmp_path: Path
) -> None:
    two = tiny.replace(algorithm=Counted())
    carry_out(tmp_path / "s", two)
    Counted.computed.clear()
    search(sweep_of(two.replace(replicates=4)), tmp_path / "s", stop={"round": 3})
    assert {seed for seed, _ in Counted.computed} == {2, 3}


@pytest.mark.parametrize("flush_seconds", [0.0, 1e6])
def test_a_run_that_grew_and_is_interrupted_goes_on_to_the_undisturbed_rows(
    flush_seconds: float, tiny: Run, tmp_path: Path
) -> None:
    """From the round before the interrupted one, or from the first."""
    clients = PerClient(on="labels", every=2)
    two = tiny.replace(algorithm=Counted(), eval_clients=clients, rounds=4)
    carry_out(tmp_path / "s", two)
    four = two.replace(replicates=4)
    interrupted(3, tmp_path / "s", sweep_of(four), flush_seconds=flush_seconds)
    grown, _ = carry_out(tmp_path / "s", four)
    again = {3} if flush_seconds == 0 else {0, 1, 2, 3}
    assert set(Counted.computed) == {(seed, t) for seed in (2, 3) for t in again}
    assert_equal(grown, carry_out(tmp_path / "alone", four)[0])
