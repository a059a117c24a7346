"""`raysafl.load`: the tables of a folder, and what is refused."""

from pathlib import Path

import pandas as pd
import pytest
from helpers.folders import finished

from raysafl import PerClient, Run, Snapshot, Sweep, Uniform, load
from raysafl.participation import Bernoulli
from raysafl.quickstart import BASE
from raysafl.storage.store import Store
from raysafl.sweep.outcome import Outcome


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """One that evaluates each third round, and one in which nobody may come."""
    return [
        BASE.replace(
            participation=Snapshot(
                base=Bernoulli(rate=0.3), uniform=Uniform(m=2), every=4
            ),
            rounds=7,
            eval_every=3,
            replicates=2,
            eval_clients=PerClient(on="labels", every=3),
        ),
        BASE.replace(
            participation=Bernoulli(rate=0.1), rounds=4, replicates=1, eval_every=4
        ),
    ]


@pytest.fixture(scope="module")
def store(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Store:
    return finished(Sweep("mine", runs), tmp_path_factory.mktemp("results") / "mine")


def test_the_tables_are_those_of_the_folder(store: Store) -> None:
    found = load(store.path)
    pd.testing.assert_frame_equal(found.runs, store.runs(), check_dtype=False)
    assert len(found.runs) == 3
    assert found.rounds.equals(store.rounds())
    assert len(found.clients) and found.clients.equals(store.clients())


def test_the_best_run_is_that_of_the_outcome(store: Store) -> None:
    ended = Outcome(store, store.manifest(), store.runs(), 0, 0, None, 0.0)
    best = load(store.path).best
    assert best == ended.best and best.candidates == 2
    runs = store.runs().groupby("run_id")["final"].mean()
    assert best.run_id == runs.idxmax()


def test_participation_has_each_client_that_came_in_each_round(
    store: Store, runs: list[Run]
) -> None:
    by_hand = [
        (row.run_id, row.replicate, row.round - len(row.cohorts) + 1 + i, client)
        for row in store.rounds().itertuples()
        for i, cohort in enumerate(row.cohorts)
        for client in cohort
    ]
    found = load(store.path).participation
    keys = ["run_id", "replicate", "round", "client"]
    assert [*found.columns] == [*keys, "enforced", "trained"]
    assert list(found[keys].itertuples(index=False, name=None)) == by_hand
    mine = found[found["run_id"] == runs[0].id]
    # Each fourth round is a snapshot, and rounds without a row are there, too.
    enforced = mine[mine["enforced"]]["round"].unique()
    assert set(enforced) < {*range(7)} and len(enforced) >= 1
    assert set(mine["round"]) - {2, 5, 6}
    assert mine.groupby(["replicate", "round"])["enforced"].nunique().max() == 1


def test_runs_that_the_sweep_no_longer_has_are_left_out(
    store: Store, runs: list[Run], tmp_path: Path
) -> None:
    smaller = Sweep("mine", runs[:1]).manifest()
    before = store.manifest()
    store.write_manifest(smaller)
    try:
        found = load(store.path)
        for table in (found.runs, found.rounds, found.clients, found.participation):
            assert set(table["run_id"]) == {runs[0].id}
    finally:
        store.write_manifest(before)


def test_a_folder_without_runs_has_empty_tables(
    tmp_path: Path, runs: list[Run]
) -> None:
    empty = Store(tmp_path / "s")
    empty.create()
    empty.write_manifest(Sweep("s", runs).manifest())
    found = load(str(tmp_path))
    for table in (found.runs, found.rounds, found.clients, found.participation):
        assert isinstance(table, pd.DataFrame) and table.empty


def test_a_path_without_one_sweep_is_refused(tmp_path: Path, runs: list[Run]) -> None:
    with pytest.raises(ValueError, match="nope holds no sweep"):
        load(tmp_path / "nope")
    for name in ("a", "b"):
        Store(tmp_path / name).create()
        Store(tmp_path / name).write_manifest(Sweep(name, runs).manifest())
    with pytest.raises(
        ValueError, match=r"holds 2 sweeps; give one of them: .*/a, .*/b"
    ):
        load(tmp_path)
