"""A sweep of more rounds: cells go on from the states in which shorter ones ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.counted import Counted, interrupted
from helpers.sweeps_here import go, search

from raysafl import SAFARI, Algorithm, PerClient, Run, Sweep
from raysafl.algorithms import SCAFFOLD, FedAvgM
from raysafl.core.rates import CosineRate
from raysafl.sweep.outcome import Outcome

pytestmark = pytest.mark.usefixtures("counting")
ACCEPTANCE = pytest.mark.acceptance


def carry_out(out: Path, run: Run, **options: Any) -> tuple[Outcome, str]:
    return go(Sweep("growing", [run]), out, **options)


def assert_rows_of_all_rounds_at_once(grown: Outcome, run: Run, folder: Path) -> None:
    expected, _ = carry_out(folder, run)
    stores = grown.store, expected.store
    found, due = (store.rounds().drop(columns="seconds") for store in stores)
    pd.testing.assert_frame_equal(found, due)
    pd.testing.assert_frame_equal(*(store.clients() for store in stores))
    models = [{c: end.kept for c, end in store.ledger().items()} for store in stores]
    assert models[1].items() <= models[0].items()


@pytest.mark.parametrize(
    "algorithm",
    [
        SCAFFOLD(),
        *(pytest.param(one, marks=ACCEPTANCE) for one in (FedAvgM(), SAFARI())),
    ],
)
def test_more_rounds_go_on_from_kept_states_with_the_rows_of_all_rounds_at_once(
    tiny: Run, tmp_path: Path, algorithm: Algorithm
) -> None:
    """With more seeds, too, which begin with the first round."""
    clients = PerClient(on="labels", every=4)
    short = tiny.replace(
        algorithm=algorithm, rounds=8, keep="best", eval_clients=clients, eval_every=2
    )
    first, _ = carry_out(tmp_path / "s", short, keep_states=True)
    assert len(first.store.files("states")) == short.replicates
    long = short.replace(rounds=12, replicates=3)
    grown, said = carry_out(tmp_path / "s", long)
    assert "2 seeds continued from where shorter runs ended" in said
    assert_rows_of_all_rounds_at_once(grown, long, tmp_path / "alone")


def test_a_longer_run_that_is_interrupted_goes_on_from_its_own_checkpoint(
    tiny: Run, tmp_path: Path
) -> None:
    short = tiny.replace(algorithm=Counted(), rounds=3)
    carry_out(tmp_path / "s", short, keep_states=True)
    long = short.replace(rounds=6)
    interrupted(5, tmp_path / "s", Sweep("growing", [long]))
    grown, _ = carry_out(tmp_path / "s", long)
    assert {t for _, t in Counted.computed} == {5}
    assert_rows_of_all_rounds_at_once(grown, long, tmp_path / "alone")


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({}, {}, "the states after their 3 rounds were not kept"),
        ({"eval_every": 2}, {"keep_states": True}, "only because it was the last"),
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
    assert_rows_of_all_rounds_at_once(grown, long, tmp_path / "alone")


def test_other_configurations_and_damaged_results_are_no_shorter_runs(
    tiny: Run, tmp_path: Path
) -> None:
    short = tiny.replace(algorithm=Counted(), rounds=3)
    first, _ = carry_out(tmp_path / "s", short, keep_states=True)
    Counted.computed.clear()
    other = short.replace({"local.lr": 0.2, "rounds": 5})
    _, said = carry_out(tmp_path / "s", other)
    assert "continued" not in said
    for file in first.store.files("states"):
        file.write_bytes(file.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="cannot be read"):
        grown, _ = carry_out(tmp_path / "s", long := short.replace(rounds=5))
    assert_rows_of_all_rounds_at_once(grown, long, tmp_path / "alone")


def test_nothing_goes_on_where_a_rule_stops_runs(tiny: Run, tmp_path: Path) -> None:
    """It would stop the longer ones by the last rounds of the shorter ones."""
    short = tiny.replace(algorithm=Counted(), rounds=3)
    carry_out(tmp_path / "s", short, keep_states=True)
    Counted.computed.clear()
    sweep = Sweep("growing", [short.replace(rounds=5)])
    _, said = search(sweep, tmp_path / "s", stop={"round": 4})
    assert "continued" not in said
    assert {t for _, t in Counted.computed} == {0, 1, 2, 3, 4}
