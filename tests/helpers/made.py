"""Rows and ledger entries of runs that nobody has computed."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raysafl import Run
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.rows import CLIENTS, ROUNDS


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
