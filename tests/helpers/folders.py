"""Folders of finished sweeps, made in this process, and what is in them."""

from pathlib import Path

from raysafl import Sweep
from raysafl.report.write import write_report
from raysafl.runtime import Worker
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.session import run_in_process


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file below a folder."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def finished(sweep: Sweep, folder: Path, report: bool = False) -> Store:
    """Run a sweep without Ray, and leave what `raysafl run` leaves."""
    store = Store(folder)
    store.create()
    store.write_manifest(sweep.manifest())
    for run in sweep.labelled().values():
        worker = Worker(run.cells, run.data.load(), run.model)
        run_in_process(run, store, worker)
    write_runs_table(store)
    if report:
        write_report(store)
    return store
