"""Which entries are the best ones, or cannot be told apart from them."""

from collections.abc import Sequence

import pandas as pd

from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.evidence import paired_differences
from raysafl.report.analysis.layout import Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest


def close_to_best(
    runs: pd.DataFrame, manifest: Manifest, chooser: Manifest, layout: Layout
) -> frozenset[str]:
    """Return the runs that are the best of their setting, or not told apart from it.

    A setting is a choice of all labels but that of the method. Runs with fewer than two seeds
    in common are not told apart. Those are left out of which a replicate diverged, or never
    reached what `rounds_to_50` and so on name.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep, whose table's statistic tells runs apart, as it is shown.
        chooser: the same sweep with the statistic that chooses the best as its table's.
        layout: the layout of its axes.
    """
    name = chooser.table.statistic
    entries = aggregate(runs, chooser)
    others = [axis for axis in manifest.axes if axis != layout.method]
    keys = [repr(entry.key(others)) for entry in manifest.entries]
    counts = ["diverged", "without"] if name.startswith("rounds_to_") else ["diverged"]
    lost = entries[counts].any(axis=1)
    means = chooser.sign * entries[f"mean.{name}"].astype(float)[~lost].dropna()
    best = means.groupby(pd.Series(keys)).transform("idxmax")
    ids = entries["run_id"]
    pairs = list(zip(ids[means.index], ids[best], strict=True))
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    apart = told_apart(pairs, done, manifest)
    return frozenset(own for k, (own, _) in enumerate(pairs) if k not in apart)


def told_apart(
    pairs: Sequence[tuple[str, str]], done: pd.DataFrame, manifest: Manifest
) -> set[int]:
    """Return which pairs of runs, by their places, are told apart by the table's statistic.

    The 95 % interval of their paired differences does not hold 0. Runs that do not have
    two seeds in common are not told apart.
    """
    found = paired_differences(pairs, done, manifest)
    # The interval has no width where all differences are equal.
    return set(found.index[found["diff"].abs() > found["half"].fillna(0.0)])
