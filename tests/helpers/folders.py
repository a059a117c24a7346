"""Folders of finished sweeps, made in this process, and what is in them."""

from pathlib import Path

from helpers.here import run_in_process
from raysafl import Sweep
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.paths import Location
from raysafl.storage.rows import of_runs
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file below a folder."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def apart(store: Store) -> None:
    """Give each run a commit of its own, as if each had been a pack."""
    found = store.read()
    store.forget(None)
    for run_id, entry in found.ledger.items():
        rows, clients = (of_runs(t, [run_id]) for t in (found.rows, found.clients))
        store.commit(rows, {run_id: entry}, clients)


def rows_file(store: Store, run_id: str, folder: str = "rounds") -> Location:
    """Return the file that holds the rows of an ended run."""
    name, _ = store.owners()[run_id]
    return store.file(folder, f"{name}.parquet")


def finished(sweep: Sweep, folder: Path, report: bool = False) -> Store:
    """Run a sweep without Ray, and leave what `raysafl run` leaves."""
    store = Store(folder)
    store.create()
    store.write_manifest(sweep.manifest())
    for run in sweep.labelled().values():
        data = run.data.load()
        worker = Worker(run.cells, data, run.model, objective=run.objective)
        run_in_process(run, store, worker)
    write_runs_table(store)
    if report:
        write_report(store)
    return store
