"""The table `runs.parquet`: a row for each replicate, from the ledger and the rows."""

import json
from typing import Any

import pandas as pd

from raysafl.core.component import flatten
from raysafl.storage.chance import chance_of
from raysafl.storage.checked import Checked, read_checked
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.rows import ROUNDS
from raysafl.storage.statistics import summarise
from raysafl.storage.store import Store

ORIGIN = ("python", "torch", "ray", "raysafl", "commit", "host", "device", "engine")


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
    rounds = dict(list(checked.rounds().groupby("run_id")))
    rows = [
        row
        for run_id, entry in checked.ledger.items()
        if run_id in labels
        for row in _run_rows(
            store.path.name, run_id, entry, labels[run_id], rounds.get(run_id)
        )
    ]
    return pd.DataFrame(rows, columns=None if rows else ["run_id", "status", "reason"])


def _run_rows(
    sweep: str,
    run_id: str,
    entry: LedgerEntry,
    labels: dict[str, Any],
    rounds: pd.DataFrame | None,
) -> list[dict[str, Any]]:
    """Return the rows of one run: a dictionary for each of its replicates."""
    config = entry.config
    seeds = entry.seeds
    ends = {end.replicate: end for end in entry.replicates}
    all_rows = ROUNDS.empty_table().to_pandas() if rounds is None else rounds
    rows = []
    for r in range(seeds.replicates):
        mine = all_rows[all_rows["replicate"] == r]
        end = ends.get(r, entry)
        rows.append(
            {
                "run_id": run_id,
                "replicate": r,
                "seed": seeds.seed + r,
                "sweep": sweep,
                **{f"label.{axis}": str(value) for axis, value in labels.items()},
                "status": end.status.value,
                "reason": end.reason,
                **summarise(mine),
                "chance": chance_of(config),
                **{f"config.{k}": _plain_text(v) for k, v in flatten(config).items()},
                "config": json.dumps(config),
                "started": entry.started or entry.ended,
                "seconds": entry.seconds or 0.0,
                **{name: getattr(entry, name) for name in ORIGIN},
            }
        )
    return rows


def _plain_text(value: Any) -> str | None:
    return None if value is None else str(value)
