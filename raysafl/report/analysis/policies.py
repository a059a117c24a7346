"""The participation policies of a sweep, and the runs that show each of them."""

from collections.abc import Set

import pandas as pd

from raysafl.storage.manifest import Entry, Manifest

# Largest number of policies that are drawn.
MOST = 6


def raster_runs(runs: pd.DataFrame, manifest: Manifest, there: Set[str]) -> list[str]:
    """Return the first run of each policy, of six policies at most.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        there: the ids of the runs that have rows.
    """
    firsts = [entries[0].run_id for entries in entries_by_policy(runs, manifest)]
    return [run_id for run_id in firsts if run_id in there][:MOST]


def entries_by_policy(runs: pd.DataFrame, manifest: Manifest) -> list[list[Entry]]:
    """Group the entries that have run by participation policy and number of clients."""
    columns = [
        c
        for c in runs
        if str(c).startswith(("config.participation", "config.data.clients"))
    ]
    if runs.empty or not columns:
        return []
    each = runs.drop_duplicates("run_id").set_index("run_id")[columns].astype(str)
    policy = {str(run_id): tuple(row) for run_id, *row in each.itertuples(name=None)}
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in manifest.entries:
        if entry.run_id in policy:
            groups.setdefault(policy[entry.run_id], []).append(entry)
    return list(groups.values())
