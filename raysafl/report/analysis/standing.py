"""Which entries are the best ones, or cannot be told apart from them."""

from collections import defaultdict

import pandas as pd

from raysafl.report.analysis.evidence import paired_differences
from raysafl.report.analysis.layout import Key, Layout
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
    known = manifest.statistic(name)
    sign = -1 if known is not None and not known.higher_is_better else 1
    means = entries.set_index("run_id")[f"mean.{name}"].astype(float).dropna()
    others = [axis for axis in manifest.axes if axis != layout.method]
    settings = defaultdict[Key, list[str]](list)
    for entry in manifest.entries:
        if entry.run_id in means.index:
            key = tuple(entry.labels.get(axis) for axis in others)
            settings[key].append(entry.run_id)
    best: dict[str, str] = {}
    for members in settings.values():
        first = max(members, key=lambda i: sign * means[i])
        best |= dict.fromkeys(members, first)
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    found = paired_differences(list(best.items()), done, manifest)
    # The interval has no width where all differences are equal.
    apart = found["diff"].abs() > found["half"].fillna(0.0)
    told_apart = set(found.index[apart])
    return frozenset(i for k, i in enumerate(best) if k not in told_apart)
