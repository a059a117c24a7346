"""The table clients/: written when a cell ends, once, and checked like its rows."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.folders import apart, finished, rows_file
from helpers.here import run_in_process

from raysafl import PerClient, Run, Sweep
from raysafl.report.query import results
from raysafl.runtime.in_process import Worker
from raysafl.storage.rows import CLIENT_COLUMNS
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify


def runs_of(tiny: Run) -> list[Run]:
    """Two runs that evaluate their clients, and one that does not."""
    asked = tiny.replace(eval_clients=PerClient(every=2, personal_steps=1))
    return [asked, asked.replace(seed=7), tiny.replace(seed=3)]


def worker(run: Run) -> Worker:
    return Worker(run.cells, run.data.load(), run.model)


def sweep_of(runs: list[Run]) -> Sweep:
    return Sweep("sweep", {(run.seed,): run for run in runs}, axes=("seed",))


@pytest.fixture(scope="module")
def two(tiny: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the two runs that evaluate their clients."""
    folder = tmp_path_factory.mktemp("two") / "sweep"
    finished(sweep_of(runs_of(tiny)[:2]), folder)
    return folder


def test_a_finished_run_has_a_row_for_each_client_and_evaluation(
    tiny: Run, tmp_path: Path
) -> None:
    runs = runs_of(tiny)
    store = finished(sweep_of(runs), tmp_path / "sweep")
    table = store.clients()
    assert list(table) == ["run_id", "replicate", *list(CLIENT_COLUMNS)[1:]]
    assert set(table["run_id"]) == {run.id for run in runs[:2]}
    assert len(table) == 2 * tiny.replicates * 2 * tiny.data.clients
    assert sorted(table["round"].unique()) == [1, 3]
    own = store.clients(runs[0].id)
    assert set(own["run_id"]) == {runs[0].id}
    assert (own["seed"] == own["replicate"] + runs[0].seed).all()
    # A client has trained in the rounds whose cohorts hold it.
    rounds = store.rounds(runs[0].id)
    for (replicate, client), rows in own.groupby(["replicate", "client"]):
        cohorts = rounds.loc[rounds["replicate"] == replicate, "cohorts"].explode()
        came = sum(client in cohort for cohort in cohorts)
        assert rows["participations"].iloc[-1] == came
    # The columns of rounds/ follow from the table.
    at_end = rounds[rounds["round"] == 3].set_index("replicate")
    means = own[own["round"] == 3].groupby("replicate")["quality"].mean()
    np.testing.assert_allclose(at_end["clients_mean_accuracy"], means)
    assert at_end["clients_mean_personal_accuracy"].notna().all()
    assert rounds.loc[rounds["round"] == 0, "clients_mean_accuracy"].isna().all()
    statistics = store.runs().set_index(["run_id", "replicate"])
    assert statistics.loc[(runs[0].id, 0), "final_clients_mean_accuracy"] == means[0]
    assert verify(store) == []


def test_tables_that_are_put_together_read_the_same(tiny: Run, tmp_path: Path) -> None:
    runs = runs_of(tiny)
    store = finished(sweep_of(runs), tmp_path / "sweep")
    before = store.clients()
    apart(store)
    assert len(store.files("clients")) == 2
    store.rewrite()
    assert len(store.files("clients")) == 1
    pd.testing.assert_frame_equal(store.clients(), before)
    store.forget(set(runs[0].cell_ids))
    assert set(store.clients()["run_id"]) == {runs[1].id}
    store.forget(None)
    assert store.clients().empty and not store.files("clients")


# By default the damages have the two forms of a folder in turn.
@pytest.mark.parametrize(
    ("damage", "is_apart"),
    [
        pytest.param(
            *(damage, is_apart),
            marks=[pytest.mark.acceptance] if (i + is_apart) % 2 else [],
        )
        for i, damage in enumerate(["lost", "cut", "edited"])
        for is_apart in (True, False)
    ],
)
def test_verify_notices_a_table_that_is_not_what_the_run_wrote(
    tiny: Run, two: Path, tmp_path: Path, damage: str, is_apart: bool
) -> None:
    runs = runs_of(tiny)[:2]
    store = Store(Path(shutil.copytree(two, tmp_path / "sweep")))
    if is_apart:
        apart(store)
    file = rows_file(store, runs[0].id, "clients")
    if damage == "lost":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-30])
    else:
        table = pq.read_table(file)
        frame = table.to_pandas()
        frame.loc[0, "quality"] += 0.01
        pq.write_table(type(table).from_pandas(frame, table.schema), file)
    wrong = {run.id for run in (runs[:1] if is_apart else runs)}
    assert not wrong & set(store.clients()["run_id"])
    findings = verify(store)
    assert any("clients/" in str(finding) for finding in findings)
    # For the planning of a sweep and for its readers they wait to be computed again.
    found = store.read().runs
    assert {i for i in found if found[i].status == "waiting"} == wrong
    shown = write_runs_table(store)
    assert not wrong & set(shown[shown["status"] == "finished"]["run_id"])
    named = results([store.path])
    assert not wrong & set(named[named["status"] == "finished"]["run_id"])
    repair(store, verify(store))
    left = {cell for run in runs if run.id not in wrong for cell in run.cell_ids}
    assert set(store.ledger()) == left
    for run in runs:
        if run.id in wrong:
            run_in_process(run, store, worker(run))
    assert len(store.clients()) == 2 * tiny.replicates * 2 * tiny.data.clients
    write_runs_table(store)
    assert verify(store) == []
