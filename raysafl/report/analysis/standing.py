"""Which entries are the best ones, and how methods stand over all settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from raysafl.report.analysis.evidence import paired_differences
from raysafl.report.analysis.layout import Key, Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest


@dataclass(frozen=True)
class Standing:
    """How the methods of a sweep stand, by the table's statistic.

    A setting is a choice of all labels but that of the method. Without an axis of methods
    all entries are one setting, and each is a method of its own.

    Attributes:
        axes: the axes that tell methods apart.
        settings: how many settings there are in which all methods have finished.
        best: the run that is best in each setting, in any order.
        close: the runs that cannot be told apart from the best of their setting: the
            interval of their paired differences holds 0. Those of `best` are among them.
        methods: one row for each method, the best first: `label.<axis>`, `mean` and `rank`
            over these settings, and `first`, in how many of them it is in `close`.
    """

    axes: list[str]
    settings: int
    best: frozenset[str]
    close: frozenset[str]
    methods: pd.DataFrame

    @classmethod
    def of(
        cls,
        runs: pd.DataFrame,
        manifest: Manifest,
        layout: Layout,
        entries: pd.DataFrame,
    ) -> "Standing":
        """Compare the entries of each setting with the best one.

        Args:
            runs: the rows of `runs.parquet`.
            manifest: the sweep.
            layout: the layout of its axes.
            entries: its entries, from `raysafl.report.analysis.entries.aggregate`.
        """
        axes = [layout.method] if layout.method else list(layout.varying)
        name = manifest.table.statistic
        known = manifest.statistic(name)
        sign = -1 if known is not None and not known.higher_is_better else 1
        means = entries.set_index("run_id")[f"mean.{name}"].astype(float).dropna()
        settings: dict[Key, dict[Key, str]] = {}
        for entry in manifest.entries:
            if entry.run_id in means.index:
                setting = _key_of(
                    entry.labels, [a for a in manifest.axes if a not in axes]
                )
                method = _key_of(entry.labels, axes)
                settings.setdefault(setting, {})[method] = entry.run_id
        best: dict[str, str] = {}
        for members in settings.values():
            first = max(members.values(), key=lambda i: sign * means[i])
            best |= dict.fromkeys(members.values(), first)
        others = [(i, first) for i, first in best.items() if i != first]
        done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
        found = paired_differences(others, done, manifest)
        close = set(best.values())
        # The interval of a difference holds 0, or has no width and is 0. Without two seeds
        # nothing is told apart.
        apart = found["diff"].abs() > found["half"].fillna(0.0)
        told_apart = set(found.index[apart])
        close |= {i for k, (i, _) in enumerate(others) if k not in told_apart}
        methods = {key for members in settings.values() for key in members}
        whole = [own for own in settings.values() if own.keys() == methods]
        ranks = [
            (sign * means[list(own.values())]).rank(ascending=False) for own in whole
        ]
        rows = []
        for method in sorted(methods, key=str) if whole else ():
            ids = [own[method] for own in whole]
            row: dict[str, Any] = {
                f"label.{axis}": label for axis, label in zip(axes, method, strict=True)
            }
            row["mean"] = means[ids].mean()
            row["rank"] = np.mean([rank[i] for rank, i in zip(ranks, ids, strict=True)])
            row["first"] = len(close.intersection(ids))
            rows.append(row)
        columns = [*(f"label.{axis}" for axis in axes), "mean", "rank", "first"]
        found_methods = pd.DataFrame(rows, columns=columns)
        found_methods = found_methods.sort_values("rank", kind="stable")
        return cls(
            axes, len(whole), frozenset(best.values()), frozenset(close), found_methods
        )


def _key_of(labels: Mapping[str, Label], axes: list[str]) -> Key:
    return tuple(labels.get(axis) for axis in axes)
