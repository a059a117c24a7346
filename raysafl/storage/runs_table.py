"""The table `runs.parquet`: a row for each replicate, from the ledger and the rows."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raysafl.core.component import flatten
from raysafl.storage.chance import chance_of
from raysafl.storage.checked import Checked, read_checked
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.statistics import STATISTICS, TOTALS, summarise_each
from raysafl.storage.store import Store

ORIGIN = ("python", "torch", "ray", "raysafl", "commit", "host", "device", "engine")
# The columns of the rows from which statistics are computed.
NEEDED = ("round", "kind", "test_accuracy", "test_loss", *TOTALS)


def write_runs_table(store: Store) -> pd.DataFrame:
    """Make the table of all ended runs, write it to `runs.parquet`, and return it."""
    frame = make_runs_table(store)
    store.write_runs(frame)
    return frame


def make_runs_table(store: Store, checked: Checked | None = None) -> pd.DataFrame:
    """Make the table of all runs in the manifest that have ended.

    Other runs in the folder are ignored: those of a grid that was changed since. A run
    whose rows are not those that it wrote has the status `damaged` and no statistics.

    Args:
        store: the folder of the sweep.
        checked: its ledger and rows; None: they are read.
    """
    labels = store.manifest().labels()
    checked = checked or read_checked(store)
    ended = {i: entry for i, entry in checked.ledger.items() if i in labels}
    if not ended:
        return pd.DataFrame(columns=["run_id", "status", "reason"])

    name = store.path.name
    rows = [_run_row(name, i, entry, labels[i]) for i, entry in ended.items()]
    replicates = np.array([entry.seeds.replicates for entry in ended.values()])
    # What the replicates of a run share is repeated for each of them.
    frame = pd.DataFrame(rows).loc[np.repeat(np.arange(len(rows)), replicates)]
    frame = frame.reset_index(drop=True)
    frame["replicate"] = np.concatenate([np.arange(n) for n in replicates])
    frame["seed"] += frame["replicate"]
    ends = [end for entry in ended.values() for end in _ends(entry)]
    frame["status"], frame["reason"] = (list(part) for part in zip(*ends, strict=True))
    frame[list(STATISTICS)] = _statistics(checked.rows, list(ended), replicates)
    return frame


def _run_row(
    sweep: str, run_id: str, entry: LedgerEntry, labels: dict[str, Any]
) -> dict[str, Any]:
    """Return the row of a run, in which what its replicates differ in is still open."""
    config = entry.config
    return {
        "run_id": run_id,
        "replicate": 0,
        "seed": entry.seeds.seed,
        "sweep": sweep,
        **{f"label.{axis}": str(value) for axis, value in labels.items()},
        "status": "",
        "reason": "",
        **dict.fromkeys(STATISTICS),
        "chance": chance_of(config),
        **{f"config.{k}": _plain_text(v) for k, v in flatten(config).items()},
        "config": json.dumps(config),
        "started": entry.started or entry.ended,
        "seconds": entry.seconds or 0.0,
        **{name: getattr(entry, name) for name in ORIGIN},
    }


def _ends(entry: LedgerEntry) -> list[tuple[str, str]]:
    """Return status and reason of each replicate of a run."""
    ends = {end.replicate: end for end in entry.replicates}
    each = [ends.get(r, entry) for r in range(entry.seeds.replicates)]
    return [(end.status.value, end.reason) for end in each]


def _statistics(
    rows: pa.Table, run_ids: Sequence[str], replicates: NDArray[np.int64]
) -> pd.DataFrame:
    """Return the statistics of each replicate of some runs, in order.

    Args:
        rows: the rows of these runs, and maybe of others, in any order.
        run_ids: the runs.
        replicates: how many replicates each of them has.
    """
    number = pc.index_in(rows["run_id"], pa.array(run_ids, pa.string()))
    run = pc.fill_null(number, -1).to_numpy()
    replicate = rows["replicate"].to_numpy()
    known = (run >= 0) & (replicate >= 0) & (replicate < replicates[run])
    place = (np.cumsum(replicates) - replicates)[run] + replicate
    order = np.lexsort((rows["round"].to_numpy(), place))
    order = order[known[order]]
    frame = rows.select(list(NEEDED)).take(pa.array(order)).to_pandas()
    lengths = np.bincount(place[order], minlength=int(replicates.sum()))
    return summarise_each(frame, lengths)


def _plain_text(value: Any) -> str | None:
    return None if value is None else str(value)
