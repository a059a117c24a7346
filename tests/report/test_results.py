"""`raysafl.load`: the tables of a folder, and what is refused."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
from helpers.folders import finished
from helpers.sweeps_here import go

from raysafl import FedAvg, Hardware, PerClient, Run, Snapshot, Sweep, Uniform, load
from raysafl.algorithms import Key, Round, State
from raysafl.participation import Bernoulli
from raysafl.quickstart import BASE
from raysafl.report.query import results
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store


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
    labels = store.runs().groupby("run_id")["label.run"].first()
    for table, stored in (
        (found.rounds, store.rounds()),
        (found.clients, store.clients()),
    ):
        assert len(table) and table.drop(columns="label.run").equals(stored)
        assert list(table["label.run"]) == list(labels[table["run_id"]])


def test_participation_has_each_client_that_came_in_each_round(
    store: Store, runs: list[Run]
) -> None:
    by_hand = [
        (
            *(row.run_id, row.replicate, row.round - len(row.cohorts) + 1 + i, client),
            *(row.enforced[i], row.trained[i]),
        )
        for row in store.rounds().itertuples()
        for i, cohort in enumerate(row.cohorts)
        for client in cohort
    ]
    found = load(store.path).participation
    keys = ["run_id", "replicate", "round", "client", "enforced", "trained"]
    assert [*found.columns] == ["run_id", "label.run", *keys[1:]]
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


def test_a_path_without_one_sweep_is_refused(tmp_path: Path, runs: list[Run]) -> None:
    (tmp_path / "study").mkdir()
    with pytest.raises(ValueError, match="study holds no sweep"):
        load(tmp_path / "study")
    with pytest.raises(ValueError, match=r"folder .*/studdy: did you mean .*/study\?"):
        load(tmp_path / "studdy")
    for name in ("a", "b"):
        Store(tmp_path / name).create()
        Store(tmp_path / name).write_manifest(Sweep(name, runs).manifest())
    with pytest.raises(ValueError, match=r"2 sweeps; give one of them: .*/a, .*/b"):
        load(tmp_path)


class Interrupted(FedAvg):
    """FedAvg whose run with this seed lists the sweep's runs in a round, and is stopped."""

    folder: ClassVar[Path]
    listed: ClassVar[list[pd.DataFrame]] = []

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if key.seed == 10 and key.round == 2:
            self.listed.append(results([self.folder]))
            raise KeyboardInterrupt
        return super().round(state, ids, key)


def test_a_run_that_has_not_ended_is_listed_as_such_and_without_statistics(
    tiny: Run, tmp_path: Path
) -> None:
    Interrupted.folder = tmp_path / "s"
    runs = [tiny.replace(algorithm=Interrupted(), seed=10 * k) for k in range(3)]
    sweep = Sweep("s", {(k,): run for k, run in enumerate(runs)}, axes=("number",))
    alone = {"try_first": False, "flush_seconds": 0.0, "hardware": Hardware(pack=1)}
    with pytest.raises(KeyboardInterrupt):
        go(sweep, tmp_path / "s", **alone)
    (running,) = Interrupted.listed
    assert running["status"].tolist() == ["finished", "running"]
    found = results([tmp_path / "s"], "true order by final desc")
    assert found["number"].tolist() == [0, 1]
    assert found["status"].tolist() == ["finished", "waiting"]
    assert found["reason"].tolist() == ["", "after 2 of 4 rounds"]
    assert found["replicates"].tolist() == [2, 0]
    assert found["final"].notna().tolist() == [True, False]
    # Its rows are there, and those who take means of the column take none of them.
    both = load(tmp_path / "s")
    assert both.rounds.groupby("run_id").size()[runs[1].id] == 2 * 2
    own = both.runs.set_index("run_id").loc[runs[1].id]
    assert own["final"].isna().all() and own["rounds"].tolist() == [2, 2]
    ended = both.runs[both.runs["status"] == "finished"]
    assert both.runs["final"].mean() == ended["final"].mean()
    # What the report is made of has the runs alone that have ended.
    assert set(write_runs_table(Store(tmp_path / "s"))["run_id"]) == {runs[0].id}
