"""The entries of a table: mean and spread of each run, with the paper's numbers beside them.

A frame of entries has one row per entry of the manifest. Its column names are dotted, so
that no axis can clash with a statistic: `label.<axis>`, `mean.<statistic>`,
`std.<statistic>`, `paper.mean` and so on.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from raysafl.core.text import nearest
from raysafl.report.analysis.layout import Layout, labels_text
from raysafl.report.analysis.nested import nested, partitions_of
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import (
    METHOD_AXES,
    Label,
    Manifest,
    Printed,
    Table,
    label_text,
    same_label,
)
from raysafl.storage.statistics import ACCURACIES, FIXED, final_of

EVERYWHERE = "all entries"
# The statistic that tells whether a run has learnt, and the column that keeps its value
# where the table shows improvements over a baseline.
LEVEL_STATISTIC = "last5"
LEVEL = "level"
# An entry has learnt if its accuracy has come this share of the way from guessing to no
# error: with ten classes it is then at least 19 %, with 45 classes 12 %.
LEARNT = 0.1
# Column of the entries -> the status of the replicates that it counts.
COUNTS = {
    "replicates": Status.FINISHED,
    "stopped": Status.STOPPED,
    "diverged": Status.DIVERGED,
    "failed": Status.FAILED,
    "damaged": Status.DAMAGED,
}


def statistics(table: Table) -> list[str]:
    """Return the statistics of a table, each once, the one in its entries first."""
    last = filter(None, [final_of(table.statistic)])
    return list(dict.fromkeys([table.statistic, *table.also, *last]))


def factor(manifest: Manifest, statistic: str) -> float:
    """Return the factor by which a statistic is multiplied for the table.

    It is the table's scale (100 for per cent) for the table's own statistic and for
    fractions, and 1 for all others, such as counts and losses.
    """
    return manifest.table.scale if _has_unit(manifest, statistic) else 1.0


def unit_of(manifest: Manifest, statistic: str) -> str:
    """Return the unit in which the table shows a statistic; empty if `factor` is 1."""
    return manifest.table.unit if _has_unit(manifest, statistic) else ""


def _has_unit(manifest: Manifest, statistic: str) -> bool:
    """Whether a statistic is shown in the table's unit, as its own one and fractions are."""
    known = manifest.statistic(statistic)
    return statistic == manifest.table.statistic or bool(known and known.is_fraction)


def replicates_of(runs: pd.DataFrame) -> "pd.Series[int]":
    """Return how many replicates each run was meant to have, by run id.

    Where `runs.parquet` has no configuration, it is the largest number that any run
    has.
    """
    seen = runs.groupby("run_id").size()
    if "config.replicates" not in runs:
        return seen.clip(lower=seen.max())
    replicates = pd.to_numeric(runs["config.replicates"], errors="coerce")
    return replicates.groupby(runs["run_id"]).max().fillna(seen).astype(int)


def aggregate(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Mean and spread over the finished replicates of every entry of a sweep.

    All are in the table's unit. Replicates that were stopped, diverged, failed or are
    damaged are counted, but not averaged.

    Returns:
        One row per entry, in the manifest's order: `run_id`, `label.<axis>` (typed as
        in the manifest), `replicates` (n), `stopped`, `diverged`, `failed`, `damaged`,
        `missing` (counts of replicates), `without` (those of `replicates` that have no value
        of the table's own statistic, and so are not in its mean), `mean.<statistic>` and
        `std.<statistic>` (that of one new partition and seed), the other columns of
        `raysafl.report.analysis.nested` for the table's own statistic, and `above_chance`:
        with a the mean of `last5` and c = 1 / number of classes, (a - c) / (1 - c), which is
        0 for guessing and 1 for no error, or NaN if c is not known.

    Raises:
        ValueError: the runs have no such statistic.
    """
    claimed = (claim.statistic for claim in manifest.claims if claim.statistic)
    names = list(dict.fromkeys([*statistics(manifest.table), *claimed]))
    ids = [entry.run_id for entry in manifest.entries]
    frame = pd.DataFrame({"run_id": ids})
    for axis in manifest.axes:
        labels = [entry.labels.get(axis) for entry in manifest.entries]
        frame[f"label.{axis}"] = pd.Series(labels, dtype=object)

    known = _typed(runs, names, manifest)
    for column, status in COUNTS.items():
        counts = known["run_id"][known["status"] == status].value_counts()
        frame[column] = counts.reindex(ids, fill_value=0).to_numpy(int)
    planned = replicates_of(known)
    # A run that has not ended is taken to have as many replicates as the others.
    default = int(planned.max()) if len(planned) else 1
    due = planned.reindex(ids, fill_value=default).to_numpy(int)
    # Replicates without any row in `runs.parquet` are missing: the run has not ended.
    frame["missing"] = (due - frame[list(COUNTS)].sum(axis=1)).clip(lower=0)

    finished = known[known["status"] == Status.FINISHED]
    partitions = partitions_of(finished)
    for name in names:
        values = finished[name].astype(float) * factor(manifest, name)
        found = nested(values, finished["run_id"], partitions).reindex(ids)
        for column in ("mean", "std"):
            frame[f"{column}.{name}"] = found[column].to_numpy(float)
        if name == manifest.table.statistic:
            valued = values.groupby(finished["run_id"]).count().reindex(ids)
            frame["without"] = frame["replicates"] - valued.fillna(0).to_numpy(int)
            own = found.drop(columns=["mean", "std"]).reset_index(drop=True)
            frame = frame.join(own)
    frame["above_chance"] = _above_chance(finished).reindex(ids).to_numpy(float)
    return frame


def _above_chance(finished: pd.DataFrame) -> "pd.Series[float]":
    """Return by run id how far the mean accuracy has come from guessing to no error."""
    level = LEVEL if LEVEL in finished else LEVEL_STATISTIC
    if level not in finished or "chance" not in finished:
        return pd.Series(dtype=float)
    numbers = finished[[level, "chance"]].astype(float)
    means = numbers.groupby(finished["run_id"]).mean()
    return (means[level] - means["chance"]) / (1 - means["chance"])


def _typed(runs: pd.DataFrame, names: list[str], manifest: Manifest) -> pd.DataFrame:
    """Check that the runs have these statistics; give an empty frame the right columns.

    A statistic of a declared column of which no run has any value is empty.
    """
    if runs.empty:
        columns = dict.fromkeys(["run_id", "status"], "str") | dict.fromkeys(
            names, "float64"
        )
        return pd.DataFrame(
            {name: pd.Series(dtype=kind) for name, kind in columns.items()}
        )
    for name in [name for name in names if name not in runs]:
        known = manifest.statistic(name)
        if known is None or known.column not in manifest.columns:
            raise ValueError(
                f"runs have no statistic '{name}': {nearest(name, map(str, runs))}"
            )
        runs = runs.assign(**{name: math.nan})
    return runs


def matches(printed: Printed, labels: Mapping[str, Label]) -> bool:
    """Return whether a printed number belongs to the entry with these labels."""
    return all(
        axis in labels and same_label(v, labels[axis])
        for axis, v in printed.labels.items()
    )


def compare(entries: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Add the paper's numbers to the entries: `diff.x = mean.x - paper.mean`.

    Args:
        entries: from `aggregate`.

    Returns:
        The entries with `paper.mean`, `paper.std` and `diff.<statistic>` in the table's
        unit. They are NaN where the paper prints no number. Beside the table's own
        statistic only those of the same column have a difference: accuracies beside one.
    """
    # The first printed number whose labels an entry has is the entry's.
    found = [
        next((p for p in manifest.paper if matches(p, entry.labels)), None)
        for entry in manifest.entries
    ]
    frame = entries.copy()
    # None is NaN among floats.
    frame["paper.mean"] = np.array([p and p.mean for p in found], float)
    frame["paper.std"] = np.array([p and p.std for p in found], float)
    for name in statistics(manifest.table):
        alike = name == manifest.table.statistic or _is_alike(name, manifest)
        frame[f"diff.{name}"] = (
            frame[f"mean.{name}"] - frame["paper.mean"] if alike else math.nan
        )
    return frame


def _is_alike(name: str, manifest: Manifest) -> bool:
    """Whether printed numbers of the table's statistic may be those of another one.

    Printed accuracies are not compared with counts and times.
    """
    own = manifest.statistic(name)
    of_table = manifest.statistic(manifest.table.statistic)
    if of_table is None or manifest.table.statistic in FIXED:
        return name in ACCURACIES
    return own is not None and own.column == of_table.column


class Distance(NamedTuple):
    """How far a table is from the paper's, beside how much the paper's numbers spread.

    Args:
        entries: the number of entries with a printed number and one of ours.
        difference: the mean of their |diff.x|, where x is the table's statistic, in the
            table's unit; NaN without entries.
        printed_std: the mean of the standard deviations that are printed for them; NaN
            without any.
    """

    entries: int
    difference: float
    printed_std: float


def distance(compared: pd.DataFrame, manifest: Manifest) -> Distance:
    """Return the distance of a table to the paper's."""
    gaps = compared[f"diff.{manifest.table.statistic}"].abs().dropna()
    printed = compared.loc[gaps.index, "paper.std"]
    return Distance(len(gaps), float(gaps.mean()), float(printed.mean()))


def unplaced(manifest: Manifest) -> list[Printed]:
    """Return the paper's numbers for which the sweep has no entry."""
    entries = manifest.entries
    return [p for p in manifest.paper if not any(matches(p, e.labels) for e in entries)]


def groups_of(entries: pd.DataFrame, axes: Iterable[str]) -> dict[str, pd.DataFrame]:
    """Return all entries, and those of each label of axes that have several, by name."""
    groups = {EVERYWHERE: entries}
    for axis in axes:
        some = entries.groupby(f"label.{axis}", sort=False, dropna=False)
        for _, own in some if len(some) > 1 else []:
            # The label None is NaN in the key of a group.
            groups[labels_text({axis: own[f"label.{axis}"].iloc[0]}, [axis])] = own
    return groups


def matching(
    compared: pd.DataFrame, manifest: Manifest, layout: Layout
) -> pd.DataFrame:
    """Find the statistic that matches the printed numbers best, over all entries and per method.

    For a statistic x and the set C of entries that have both x and a printed number, the
    distance is mean_C |diff.x|. Distances are comparable only over equally many entries,
    so `best` is the least distance among the statistics that most entries have; ties go
    to the first.

    Returns:
        Rows `group` ("all entries" or "<axis> = <value>"), `statistic`, `entries`,
        `distance` (in the table's unit) and `best`; none where nothing can be compared.
    """
    axes = [layout.method] if layout.method and manifest.paper else []
    groups = groups_of(compared, axes)
    found: list[dict[str, Any]] = []
    for group, entries in groups.items():
        rows = _distances(entries, manifest)
        best = min(rows, key=_rank_of_statistic, default=None)
        found += [{"group": group, **row, "best": row is best} for row in rows]
    return pd.DataFrame(
        found, columns=["group", "statistic", "entries", "distance", "best"]
    )


def readings(compared: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Return how far each reading of the paper is from its printed numbers, nearest first.

    A reading is a combination of labels on the table's `readings` axes. Its distance by
    a statistic x is mean |diff.x| over its entries with a printed number. If there is an
    axis for the method, each method has a row of its own, because a baseline may not
    depend on some reading.

    Returns:
        Rows `method` (empty if there is no such axis), `reading`, `entries`, `statistic`
        (that with the least distance over most entries), `distance` and
        `distance.<statistic>`.
    """
    method = next((a for a in METHOD_AXES if a in manifest.axes), None)
    axes = [a for a in ([method] if method else []) + manifest.table.readings if a]
    found: list[dict[str, Any]] = []
    if not manifest.table.readings:
        return pd.DataFrame(found)
    for _, entries in compared.groupby(
        [f"label.{axis}" for axis in axes], sort=False, dropna=False
    ):
        # The label None is NaN in the key of a group.
        labels = {axis: entries[f"label.{axis}"].iloc[0] for axis in axes}
        rows = _distances(entries, manifest)
        if rows:
            best = min(rows, key=_rank_of_statistic)
            found.append(
                {
                    "method": "" if method is None else label_text(labels.pop(method)),
                    "reading": labels_text(labels, list(labels)),
                    **best,
                    **{f"distance.{row['statistic']}": row["distance"] for row in rows},
                }
            )
    frame = pd.DataFrame(found)
    if frame.empty:
        return frame
    return frame.sort_values(["method", "distance"], kind="stable")


def _distances(entries: pd.DataFrame, manifest: Manifest) -> list[dict[str, Any]]:
    """Return each statistic's mean absolute difference to the paper over some entries."""
    gaps = {n: entries[f"diff.{n}"].abs().dropna() for n in statistics(manifest.table)}
    return [
        {"statistic": name, "entries": len(own), "distance": float(own.mean())}
        for name, own in gaps.items()
        if len(own)
    ]


def _rank_of_statistic(row: dict[str, Any]) -> tuple[int, float]:
    """Return what is least for the statistic that is nearest to the paper."""
    # A statistic with fewer entries may be near by luck, so it is not compared.
    return -row["entries"], row["distance"]
