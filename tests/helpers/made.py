"""Rows and ledger entries of runs that nobody has computed."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raysafl import Run
from raysafl.storage.ledger import CellEnd, Checkpoint, HowFar, Status
from raysafl.storage.manifest import Entry
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.store import Store

# When cells began that nobody has computed.
STARTED = "2026-11-21T02:00:00+00:00"


def rows_of(run: Run, draw: int = 0, through: int | None = None) -> pa.Table:
    """The rows of a run's cells up to a round; another `draw` gives other numbers."""
    rng = np.random.default_rng([run.seed, draw])
    rows = [
        {
            "cell": cell,
            "seed": seed,
            "round": i,
            "kind": "client",
            "cohorts": [rng.integers(0, 9, 3).tolist()],
            "enforced": [False],
            "trained": [True],
            "test_accuracy": float(rng.random()),
            "bytes_up": int(rng.integers(99)),
        }
        for i in range(run.rounds)[:through]
        for cell, seed in zip(run.cell_ids, run.seeds, strict=True)
    ]
    return pa.Table.from_pylist(rows, schema=ROUNDS)


def clients_of(run: Run, draw: int = 0) -> pa.Table:
    """How a run's cells serve its clients; another `draw` gives other numbers."""
    rng = np.random.default_rng([run.seed, draw, 1])
    rows = [
        {
            "cell": cell,
            "seed": seed,
            "round": run.rounds - 1,
            "client": i,
            "samples": 7,
            "quality": float(rng.random()),
        }
        for cell, seed in zip(run.cell_ids, run.seeds, strict=True)
        for i in range(3)
    ]
    return pa.Table.from_pylist(rows, schema=CLIENTS)


def ends_of(run: Run, status: Status = Status.FINISHED, **more: Any) -> list[CellEnd]:
    """The entries of a run's cells, without the parts that `Journal.take` fills in."""
    return [
        CellEnd(cell=cell, seed=seed, status=status, **more)
        for cell, seed in zip(run.cell_ids, run.seeds, strict=True)
    ]


def ended(
    runs: Sequence[Run], draw: int = 0
) -> tuple[list[CellEnd], pa.Table, pa.Table]:
    """Entries, rows and tables of clients of finished runs, as `Journal.take` takes them."""
    rows = pa.concat_tables([ROUNDS.empty_table(), *(rows_of(r, draw) for r in runs)])
    clients = [CLIENTS.empty_table(), *(clients_of(r, draw) for r in runs)]
    return [e for run in runs for e in ends_of(run)], rows, pa.concat_tables(clients)


def checkpoint_of(run: Run, draw: int = 0, through: int = 1) -> Checkpoint:
    """Where a run's cells are after so many rounds, with states that nobody can use."""
    cells = {
        cell: HowFar(
            seed=seed, round=through, rounds=run.rounds, started=STARTED, seconds=1.0
        )
        for cell, seed in zip(run.cell_ids, run.seeds, strict=True)
    }
    rows = rows_of(run, draw, through)
    return Checkpoint(cells, rows, CLIENTS.empty_table(), b"state")


def save(store: Store, run_id: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Save that a run of the manifest goes on, with these rows in place of earlier ones.

    Args:
        store: the sweep's folder.
        run_id: the run.
        rows: its rows, as fields of records; `replicate` says of which cell. Cells without
            rows have not begun.
    """
    entry, table = _found(store, run_id, rows)
    over = {row.get("replicate", 0): row["round"] + 1 for row in rows}
    cells = {
        entry.cells[replicate]: HowFar(
            seed=entry.seeds[replicate],
            round=rounds,
            rounds=entry.config.get("rounds", 0),
            started=STARTED,
            seconds=1.0,
        )
        for replicate, rounds in over.items()
    }
    content = Checkpoint(cells, table, CLIENTS.empty_table()).to_bytes()
    store.save(run_id, content)


def end(
    store: Store,
    run_id: str,
    rows: Sequence[Mapping[str, Any]] = (),
    status: str = "finished",
    replicates: Collection[int] | None = None,
    **more: Any,
) -> None:
    """Let cells of a run of the manifest have ended with these rows, all of them alike.

    Args:
        store: the sweep's folder.
        run_id: the run.
        rows: all rows of these cells, as for `save`.
        status: how the cells ended.
        replicates: their numbers in the run; None for all.
        more: further fields of the cells' entries in the ledger.
    """
    entry, table = _found(store, run_id, rows)
    fields = {"started": STARTED, **more}
    ends = [
        CellEnd.now(cell, Status(status), seed=seed, **fields)
        for number, (cell, seed) in enumerate(
            zip(entry.cells, entry.seeds, strict=True)
        )
        if replicates is None or number in replicates
    ]
    store.take(ends, table, CLIENTS.empty_table())
    store.drop_checkpoint(run_id)


def _found(
    store: Store, run_id: str, rows: Sequence[Mapping[str, Any]]
) -> tuple[Entry, pa.Table]:
    """A run of the manifest, and rows of it as a table."""
    (entry,) = [own for own in store.manifest().entries if own.run_id == run_id]
    cells = entry.cells
    own = [{**row, "cell": cells[row.get("replicate", 0)]} for row in rows]
    names = dict.fromkeys(name for row in own for name in row)
    further = [
        pa.field(
            name,
            pa.list_(pa.float64())
            if any(isinstance(row.get(name), list) for row in own)
            else pa.float64(),
        )
        for name in names
        if name not in (*ROUNDS.names, "replicate", "run_id")
    ]
    return entry, pa.Table.from_pylist(own, schema=pa.schema([*ROUNDS, *further]))
