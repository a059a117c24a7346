"""Rows and ledger entries of runs that nobody has computed."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raysafl import Run
from raysafl.storage.journal import Journal
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.rows import CLIENTS, ROUNDS, table_of
from raysafl.storage.sealed import OpenState


def rows_of(run: Run, draw: int = 0, through: int | None = None) -> pa.Table:
    """The rows of a run up to a round; another `draw` gives other numbers."""
    rng = np.random.default_rng([run.seed, draw])
    rows = [
        {
            "run_id": run.id,
            "replicate": r,
            "seed": run.seed + r,
            "round": i,
            "kind": "client",
            "cohorts": [rng.integers(0, 9, 3).tolist()],
            "enforced": [False],
            "trained": [True],
            "test_accuracy": float(rng.random()),
            "bytes_up": int(rng.integers(99)),
        }
        for i in range(run.rounds)[:through]
        for r in range(run.replicates)
    ]
    return pa.Table.from_pylist(rows, schema=ROUNDS)


def clients_of(run: Run, draw: int = 0) -> pa.Table:
    """How a run serves its clients; another `draw` gives other numbers."""
    rng = np.random.default_rng([run.seed, draw, 1])
    rows = [
        {
            "run_id": run.id,
            "replicate": r,
            "seed": run.seed + r,
            "round": run.rounds - 1,
            "client": i,
            "samples": 7,
            "quality": float(rng.random()),
        }
        for r in range(run.replicates)
        for i in range(3)
    ]
    return pa.Table.from_pylist(rows, schema=CLIENTS)


def entry_of(run: Run, status: Status = Status.FINISHED) -> LedgerEntry:
    """The entry of a run, without the sums that a commit fills in."""
    return LedgerEntry(status=status, config=run.model_dump(mode="json"))


def ended(
    runs: Sequence[Run], draw: int = 0
) -> tuple[pa.Table, dict[str, LedgerEntry], pa.Table]:
    """Rows, entries and client tables of finished runs, as `Journal.commit` takes them."""
    rows = pa.concat_tables([ROUNDS.empty_table(), *(rows_of(r, draw) for r in runs)])
    clients = [CLIENTS.empty_table(), *(clients_of(r, draw) for r in runs)]
    return rows, {run.id: entry_of(run) for run in runs}, pa.concat_tables(clients)


def save(
    store: Journal,
    run_id: str,
    rows: Sequence[Mapping[str, Any]],
    first: int = 0,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Save rows of a run that goes on, as fields of records.

    Args:
        store: the sweep's folder.
        run_id: the run.
        rows: its rows from a round on, after those that were saved before.
        first: this round; 0 for rows in place of all others.
        about: what is said of the run; None for nothing.
    """
    before = store.resume(run_id) if first else None
    table = table_of(run_id, rows)
    if before is not None:
        table = pa.concat_tables([before.rows, table])
    store.flush(run_id, OpenState(about or {}, table, CLIENTS.empty_table(), b""))
