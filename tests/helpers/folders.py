"""Folders of finished sweeps, made in this process, and what is in them."""

from pathlib import Path

from helpers.here import run_in_process
from raysafl import Sweep
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.rows import of_cells
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file below a folder."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def apart(store: Store) -> None:
    """Give each run parts of its own, as if each had been a pack."""
    found = store.results()
    models = {cell: store.model(cell) for cell, end in found.ends.items() if end.kept}
    kept = {cell: file.read_bytes() for cell, file in models.items()}
    store.forget(None)
    for entry in store.manifest().entries:
        ends = [found.ends[cell] for cell in entry.cells if cell in found.ends]
        rows, clients = (of_cells(t, entry.cells) for t in (found.rows, found.clients))
        store.take(ends, rows, clients, {c: kept[c] for c in entry.cells if c in kept})


def rows_file(store: Store, run_id: str, folder: str = "rounds") -> Path:
    """Return the part that holds the rows of an ended run's first cell."""
    return store.part(folder, getattr(store.ledger()[run_id], folder))


def finished(sweep: Sweep, folder: Path, report: bool = False) -> Store:
    """Run a sweep without Ray, and leave what `raysafl run` leaves."""
    store = Store(folder)
    store.create()
    store.write_manifest(sweep.manifest())
    for run in sweep.labelled().values():
        data = run.data.load()
        worker = Worker(run.cells, data, run.model, objective=run.objective)
        run_in_process(run, store, worker)
    store.rewrite()
    write_runs_table(store)
    if report:
        write_report(store)
    return store
