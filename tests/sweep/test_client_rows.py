"""The table clients/: written when a run ends, once, and checked like its rows."""

import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from helpers.folders import finished, rows_file
from helpers.here import run_in_process

from raysafl import PerClient, Run, Sweep
from raysafl.report.query import results
from raysafl.runtime.in_process import Worker
from raysafl.storage.rows import CLIENT_COLUMNS
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.storage.verify import repair, verify
from raysafl.sweep.session import Session


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
    assert list(table) == list(CLIENT_COLUMNS)
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


def test_an_interrupted_run_writes_the_same_table(tiny: Run, tmp_path: Path) -> None:
    (run, *_) = runs_of(tiny)
    whole = finished(sweep_of([run]), tmp_path / "whole")
    store = Store(tmp_path / "interrupted")
    store.create()
    store.write_manifest(whole.manifest())
    for _ in range(3):
        # A session is lost without a word after its checkpoint.
        session = Session([run], store, worker(run), {})
        session._advance()
        session.flush()
        session._advance()
    run_in_process(run, store, worker(run))
    pd.testing.assert_frame_equal(store.clients(), whole.clients())
    assert len(list((store.path / "clients").iterdir())) == 1
    assert verify(store) == []


def test_compacted_tables_read_the_same_and_hold_each_run_once(
    tiny: Run, tmp_path: Path
) -> None:
    runs = runs_of(tiny)
    store = finished(sweep_of(runs), tmp_path / "sweep")
    before = store.clients()
    folder = store.path / "clients"
    assert len(list(folder.iterdir())) == 2
    store.compact()
    assert len(list(folder.iterdir())) == 1
    pd.testing.assert_frame_equal(store.clients(), before)
    store.forget({runs[0].id})
    assert set(store.clients()["run_id"]) == {runs[1].id}
    store.forget(None)
    assert store.clients().empty and not list(folder.iterdir())


# By default the damages have the two forms of a folder in turn.
@pytest.mark.parametrize(
    ("damage", "compacted"),
    [
        pytest.param(
            *(damage, compacted),
            marks=[pytest.mark.acceptance] if (i + compacted) % 2 else [],
        )
        for i, damage in enumerate(["lost", "cut", "edited"])
        for compacted in (False, True)
    ],
)
def test_verify_notices_a_table_that_is_not_what_the_run_wrote(
    tiny: Run, two: Path, tmp_path: Path, damage: str, compacted: bool
) -> None:
    runs = runs_of(tiny)[:2]
    store = Store(Path(shutil.copytree(two, tmp_path / "sweep")))
    if compacted:
        store.compact()
    file = rows_file(store, runs[0].id, "clients")
    if damage == "lost":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:-30])
    else:
        table = pq.read_table(file)
        frame = table.to_pandas()
        mine = frame.index[frame["run_id"] == runs[0].id]
        frame.loc[mine[0], "quality"] += 0.01
        pq.write_table(type(table).from_pandas(frame, table.schema), file)
    with pytest.warns(match="left out") if damage == "cut" else nullcontext():
        store.clients()
        shown = store.read().clients["run_id"].to_pylist()
    assert runs[0].id not in shown
    findings = verify(store)
    texts = " ".join(map(str, findings))
    assert "clients/" in texts
    with pytest.warns(match="left out") if damage == "cut" else nullcontext():
        before = read_by_all(store, runs[0].id)
    assert before == ("damaged", {"damaged"}, "damaged")
    repaired = repair(store, findings)
    assert repaired == findings
    wrong = {finding.run_id for finding in findings} - {""}
    assert runs[0].id in wrong
    assert set(store.ledger()) == {run.id for run in runs} - wrong
    for run in runs:
        if run.id in wrong:
            run_in_process(run, store, worker(run))
    assert len(store.clients()) == 2 * tiny.replicates * 2 * tiny.data.clients
    write_runs_table(store)
    assert verify(store) == []


def read_by_all(store: Store, run_id: str) -> tuple[str, set[str], str]:
    """The status of a run for the planning of a sweep, the report, and `results`."""
    planned = store.read().ledger[run_id].status
    runs = write_runs_table(store)
    shown = results([store.path]).set_index("run_id").loc[run_id, "status"]
    return str(planned), set(runs[runs["run_id"] == run_id]["status"]), str(shown)
