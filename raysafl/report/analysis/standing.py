"""Which entries are the best ones, and which cannot be told apart from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from raysafl.report.analysis.evidence import paired_differences
from raysafl.report.analysis.layout import Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import UNTIL


@dataclass(frozen=True)
class Marks:
    """The runs of a table that are marked, by their ids.

    Attributes:
        best: the runs that are bold.
        close: the runs with a dagger, which cannot be told apart from those.
    """

    best: frozenset[str] = frozenset()
    close: frozenset[str] = frozenset()


def marks_of(
    runs: pd.DataFrame, entries: pd.DataFrame, manifest: Manifest, layout: Layout
) -> Marks:
    """Return the run with the best mean of each setting, and those that are close to it.

    A setting is a choice of all labels but that of the method. Runs are left out of which a
    replicate diverged, or never reached what `rounds_to_50` and so on name.

    Args:
        runs: the rows of `runs.parquet`.
        entries: what `raysafl.report.analysis.entries.aggregate` makes of them.
        manifest: the sweep, whose table names the statistic.
        layout: the layout of its axes.
    """
    name = manifest.table.statistic
    others = [axis for axis in manifest.axes if axis != layout.method]
    counts = ["diverged", "without"] if name.startswith(UNTIL) else ["diverged"]
    compared = pd.DataFrame(
        {
            "run_id": entries["run_id"],
            "setting": [repr(entry.key(others)) for entry in manifest.entries],
            "score": manifest.sign * entries[f"mean.{name}"].astype(float),
        }
    )
    compared = compared[~entries[counts].any(axis=1)].dropna(subset="score")
    compared = compared.sort_values("score", ascending=False, kind="stable")
    rankings = [list(ids) for _, ids in compared.groupby("setting")["run_id"]]
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    return Marks(
        frozenset(first for first, *_ in rankings),
        frozenset(close_to_first(rankings, done, manifest)),
    )


def close_to_first(
    rankings: Sequence[Sequence[str]], done: pd.DataFrame, manifest: Manifest
) -> list[str]:
    """Return the runs that cannot be told apart from the first one of their ranking.

    Two runs are told apart if the 95 % interval of their paired differences in the table's
    statistic does not hold 0, so never if they have fewer than two seeds in common. Once a
    run is told apart from the first, all those that are ranked below it are, too: a wide
    spread is no merit.

    Args:
        rankings: the ids of runs that are compared, the best ones first.
        done: the finished replicates.
        manifest: the sweep.
    """
    pairs = [(other, first) for first, *others in rankings for other in others]
    tested = paired_differences(pairs, done, manifest)
    # The interval has no width where all differences are equal.
    clear = tested.index[tested["diff"].abs() > tested["half"].fillna(0.0)]
    apart = {pairs[i] for i in clear}
    close = []
    for first, *others in rankings:
        for other in others:
            if (other, first) in apart:
                break
            close.append(other)
    return close
