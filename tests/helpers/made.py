"""Rows and ledger entries of runs that nobody has computed, whole and undamaged."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raysafl import Run
from raysafl.storage.integrity import row_sums
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.rows import ROUNDS


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


def entry_of(run: Run, rows: pa.Table, status: Status = Status.FINISHED) -> LedgerEntry:
    """The entry of a run that has written these rows."""
    sums = row_sums(rows).get(run.id, {})
    ends = [
        ReplicateEnd(replicate=r, status=status, rows=own.rows, digest=own.digest)
        for r, own in sorted(sums.items())
    ]
    config = run.model_dump(mode="json")
    return LedgerEntry(status=status, config=config, replicates=ends)


def ended(
    runs: Sequence[Run], draw: int = 0
) -> tuple[pa.Table, dict[str, LedgerEntry]]:
    """Rows and entries of finished runs, as `Store.write_bundle` takes them."""
    tables = {run.id: rows_of(run, draw) for run in runs}
    entries = {run.id: entry_of(run, tables[run.id]) for run in runs}
    return pa.concat_tables(tables.values()), entries
