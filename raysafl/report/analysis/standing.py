"""Which entries are the best ones, or cannot be told apart from them."""

import pandas as pd

from raysafl.report.analysis.evidence import paired_differences
from raysafl.report.analysis.layout import Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest


def close_to_best(
    runs: pd.DataFrame, manifest: Manifest, layout: Layout, entries: pd.DataFrame
) -> frozenset[str]:
    """Return the runs that are the best of their setting, or not told apart from it.

    A setting is a choice of all labels but that of the method, and the best is that by the
    table's statistic. A run is not told apart from it if the interval of their paired
    differences holds 0, or if they do not have two seeds in common.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        layout: the layout of its axes.
        entries: its entries, from `raysafl.report.analysis.entries.aggregate`.
    """
    name = manifest.table.statistic
    others = [axis for axis in manifest.axes if axis != layout.method]
    keys = [repr(entry.key(others)) for entry in manifest.entries]
    means = manifest.sign * entries[f"mean.{name}"].astype(float).dropna()
    best = means.groupby(pd.Series(keys)).transform("idxmax")
    ids = entries["run_id"]
    pairs = list(zip(ids[means.index], ids[best], strict=True))
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    found = paired_differences(pairs, done, manifest)
    # The interval has no width where all differences are equal.
    apart = found["diff"].abs() > found["half"].fillna(0.0)
    told_apart = set(found.index[apart])
    return frozenset(own for k, (own, _) in enumerate(pairs) if k not in told_apart)
