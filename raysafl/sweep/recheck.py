"""Runs of a results folder are computed again, and their rows compared."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raysafl.simulation.run import Run
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import run_name
from raysafl.storage.rows import of_runs, sorted_rows
from raysafl.storage.store import RunResult, Store
from raysafl.sweep.definition import Sweep
from raysafl.sweep.runner import Runner
from raysafl.tracking.choice import Tracking


def recheck(store: Store, number: int, **options: Any) -> Iterator[tuple[str, str]]:
    """Compute some finished runs of a sweep again, chosen at random, in another folder.

    Args:
        store: the folder of the sweep, of which nothing is changed.
        number: how many runs.
        options: those of `Runner` that say how runs are carried out, such as `executor`.

    Yields:
        The name of each run, and in which columns its rows differ and by how much at
        most; an empty text if they are equal bit by bit. Times are not compared.

    Raises:
        ValueError: the folder holds no sweep or no finished run, or a run has a class
            that is not defined.
    """
    known = store.read().runs
    finished = [i for i, run in known.items() if run.status is Status.FINISHED]
    if not finished:
        raise ValueError(f"{store.path} holds no finished run")
    # Which are chosen is nobody's to know beforehand.
    chosen = random.SystemRandom().sample(finished, min(number, len(finished)))
    runs = [_run_of(known[run_id]) for run_id in chosen]
    with tempfile.TemporaryDirectory(prefix="raysafl-") as folder:
        again = Store(Path(folder) / "again")
        options |= {"track": Tracking.NONE, "try_first": False, "quiet": True}
        Runner(Sweep("again", runs=runs), again.path, **options).run()
        for run_id in chosen:
            rows = [_rows_without_times(own, run_id) for own in (store, again)]
            yield run_name(known[run_id].labels, run_id), unlike_columns(*rows)


def unlike_columns(before: pa.Table, again: pa.Table) -> str:
    """Say in which columns rows differ, and by how much at most; empty if in none."""
    if len(before) != len(again):
        return f"{len(before)} rows before and {len(again)} again"
    told = sorted({*before.column_names} ^ {*again.column_names})
    for name in filter(again.column_names.__contains__, before.column_names):
        one = before[name]
        other = again[name]
        if one.equals(other):
            continue
        text = name
        if pa.types.is_floating(one.type):
            was = one.to_numpy()
            new = other.to_numpy()
            # Where no number is in both, bits are equal, too.
            if np.array_equal(was, new, equal_nan=True):
                continue
            with np.errstate(invalid="ignore"):
                # Where one of the two is no number, nothing is known of how far.
                most = np.nanmax(np.abs(was - new), initial=0.0)
            text += f" by up to {most:.2g}" if most else ""
        told.append(text)
    return f"other {', '.join(told)}" if told else ""


def _rows_without_times(store: Store, run_id: str) -> pa.Table:
    """Return the rows of a run in their order, without the time that they took."""
    rows = of_runs(store.read({run_id}).rows, {run_id})
    return sorted_rows(rows).drop_columns("seconds")


def _run_of(run: RunResult) -> Run:
    """Build a run from the manifest.

    Raises:
        ValueError: it names a class that is not defined.
    """
    try:
        return Run.model_validate(run.config)
    except ValueError as error:
        raise ValueError(
            f"run {run.run_id} cannot be built from what is stored ({error}); if it has classes "
            "of your own, name the experiment file that defines them with --file"
        ) from error
