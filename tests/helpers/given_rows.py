"""Rows of runs that nobody has computed, in the folder of a sweep whose manifest has the runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from raysafl.storage.checkpoint import Checkpoint, OpenCell
from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.manifest import Entry
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.store import Store

Rows = Sequence[Mapping[str, Any]]
STARTED = "2026-11-21T02:00:00+00:00"


def save(store: Store, run_id: str, rows: Rows) -> None:
    """Let a run go on, whose seeds have these rows so far; those without rows have not begun."""
    entry = _entry(store, run_id)
    rounds = entry.config.get("rounds", 1)
    over = {row["replicate"]: row["round"] + 1 for row in rows}
    cells = {
        entry.cells[r]: OpenCell(
            seed=entry.seeds[r], round=n, rounds=rounds, started=STARTED, seconds=1.0
        )
        for r, n in over.items()
    }
    table = _table(entry, rows)
    checkpoint = Checkpoint(cells, table, CLIENTS.empty_table())
    store.save(run_id, checkpoint.to_bytes())


def end(
    store: Store,
    run_id: str,
    rows: Rows = (),
    status: Status = Status.FINISHED,
    seeds: Sequence[int] | None = None,
    **fields: Any,
) -> None:
    """Let seeds of a run end, with all of their rows.

    Args:
        store: the folder.
        run_id: the run.
        rows: all rows of these seeds.
        status: how they end.
        seeds: the numbers of the replicates that end; None for all.
        fields: what else the ledger says of them.
    """
    entry = _entry(store, run_id)
    chosen = range(len(entry.cells)) if seeds is None else seeds
    ends = [
        CellEnd.now(
            entry.cells[r],
            status,
            **{"seed": entry.seeds[r], "started": STARTED, "seconds": 1.0, **fields},
        )
        for r in chosen
    ]
    store.take(ends, _table(entry, rows), CLIENTS.empty_table())


def _entry(store: Store, run_id: str) -> Entry:
    (entry,) = [own for own in store.manifest().entries if own.run_id == run_id]
    return entry


def _table(entry: Entry, rows: Rows) -> pa.Table:
    own = [{**row, "cell": entry.cells[row["replicate"]]} for row in rows]
    return pa.Table.from_pylist(own, schema=ROUNDS)
