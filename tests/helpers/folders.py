"""Folders of finished sweeps, made in this process, and what is in them."""

from pathlib import Path

import numpy as np

from helpers.here import run_in_process
from raysafl import Sweep
from raysafl.report.write import write_report
from raysafl.runtime.in_process import Worker
from raysafl.storage.rows import table_of
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of every file below a folder."""
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def apart(store: Store, *first_rounds: int) -> None:
    """Give each run files of its own, in place of those of its pack.

    So runs look that a scheduler stopped.

    Args:
        store: the folder, without compacted files.
        first_rounds: the rows lie in parts that begin with these rounds; by default in
            one part.
    """
    starts = np.array(sorted(first_rounds) or [0])
    rows, ledger = store.rounds(), store.ledger()
    for bundle in store.bundles():
        bundle.delete()
    for run_id, entry in ledger.items():
        store.write_ledger(run_id, entry)
    part = np.searchsorted(starts, rows["round"], side="right") - 1
    for (run_id, k), own in rows.groupby(["run_id", part]):
        records = own.drop(columns="run_id").to_dict("records")
        store.write_part(str(run_id), int(starts[k]), table_of(str(run_id), records))


def rows_file(store: Store, run_id: str) -> Path:
    """Return the first file that holds rows of a run."""
    bundles = [b.rows_file for b in store.bundles() if run_id in b.run_ids()]
    return Path(str([*store.parts(run_id), *bundles][0]))


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
