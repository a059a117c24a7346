"""The entries of a table: mean and spread of each run, between partitions and within one.

A frame of entries has one row per entry of the manifest. Its column names are dotted, so
that no axis can clash with a statistic: `label.<axis>`, `mean.<statistic>`,
`std.<statistic>` and so on.
"""

import math

import numpy as np
import pandas as pd

from raysafl.core.text import nearest
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest, Table
from raysafl.storage.statistics import default_unit, final_of


def partitions_of(runs: pd.DataFrame) -> "pd.Series[int]":
    """Return the partition seed of each replicate; -1 where it was not stored.

    Args:
        runs: rows of `runs.parquet`.
    """
    if "partition_seed" not in runs:
        return pd.Series(-1, index=runs.index)
    return runs["partition_seed"].fillna(-1).astype("int64")


def units_of(runs: pd.DataFrame) -> "pd.Series[int]":
    """Return the `seed` of each replicate, or its `partition` where all runs have several.

    The series has this name. Seeds of one partition depend on each other.
    """
    partitions = partitions_of(runs)
    each = partitions.groupby(runs["run_id"])
    # One replicate does not tell whether its run has several partitions.
    several = each.nunique()[each.size() > 1].min() > 1
    return partitions.rename("partition") if several else runs["seed"]


def nested(
    values: "pd.Series[float]", run_id: "pd.Series[str]", partition: "pd.Series[int]"
) -> pd.DataFrame:
    """Return the mean and the spread of each run's replicates, by run id.

    Replicate k of partition d has the value x_dk = mu + a_d + e_dk, where a_d and e_dk are
    independent with means 0 and variances between^2 and within^2. This is the nested one-way
    model with random effects, whose variances follow from two mean squares (analysis of
    variance, docs/papers.md#nested). With n_d replicates of partition d, m_d their mean,
    N = sum_d n_d, m = sum_d n_d m_d / N and D partitions,

        MSB = sum_d n_d (m_d - m)^2 / (D - 1)
        MSW = sum_d sum_k (x_dk - m_d)^2 / (N - D)
        within^2 = MSW
        between^2 = max(0, (MSB - MSW) / n),  n = (N - sum_d n_d^2 / N) / (D - 1)

    A result of one new partition and seed has the variance between^2 + within^2.

    Args:
        values: the statistic of each replicate; those without one are left out.
        run_id: the run of each replicate.
        partition: the partition of each replicate.

    Returns:
        `mean`; `partitions` (D); `between` and `within`, NaN where the replicates do not
        tell: `between` with one partition, `within` with one seed each; `std`,
        sqrt(between^2 + within^2), which is the standard deviation over seeds with one
        partition, and that over partitions with one seed each; `error`, the standard
        error of the mean; and `freedom`, the degrees of freedom of `std` and `error`:
        D - 1, or N - 1 with one partition. What one replicate does not tell is NaN.
    """
    frame = pd.DataFrame({"run": run_id, "partition": partition, "value": values})
    frame = frame.dropna(subset="value")
    # The spread of infinite losses is NaN, which needs no warning; nor does 0 / 0.
    with np.errstate(invalid="ignore", divide="ignore"):
        grouped = frame.groupby(["run", "partition"])["value"]
        parts = grouped.agg(["size", "mean", "var"]).reset_index("partition")
        mean = frame.groupby("run")["value"].mean()
        parts["outer"] = parts["size"] * (parts["mean"] - mean) ** 2
        parts["inner"] = (parts["size"] - 1) * parts["var"].where(parts["size"] > 1, 0)
        parts["squares"] = parts["size"] ** 2
        sums = parts.groupby("run").sum()
        partitions = parts.groupby("run").size()
        count = sums["size"]
        outer = sums["outer"] / (partitions - 1)
        inner = sums["inner"] / (count - partitions)
        n = (count - sums["squares"] / count) / (partitions - 1)
        between = ((outer - inner) / n).clip(lower=0)
        error = between * sums["squares"] / count**2 + inner / count
        # With one partition, or one seed each, one mean square is NaN and the other all.
        found = pd.DataFrame(
            {
                "between": between,
                "within": inner,
                "std": (between + inner).fillna(outer).fillna(inner),
                "error": error.fillna(outer / count).fillna(inner / count),
            }
        ).pow(0.5)
    freedom = (partitions - 1).where(partitions > 1, count - 1)
    return found.where(np.isfinite(found)).assign(
        mean=mean, partitions=partitions, freedom=freedom
    )


# The statistic that tells whether a run has learnt.
LEVEL_STATISTIC = "last5"
# An entry has learnt if its accuracy has come this share of the way from guessing to no
# error: with ten classes it is then at least 19 %, with 45 classes 12 %.
LEARNT = 0.1
# Column of the entries -> the status of the replicates that it counts.
COUNTS = {
    "replicates": Status.FINISHED,
    "stopped": Status.STOPPED,
    "diverged": Status.DIVERGED,
    "failed": Status.FAILED,
}


def statistics(table: Table) -> list[str]:
    """Return the statistics of a table, each once, the one in its entries first."""
    last = filter(None, [final_of(table.statistic)])
    return list(dict.fromkeys([table.statistic, *table.also, *last]))


def factor(manifest: Manifest, statistic: str) -> float:
    """Return the factor by which a statistic is multiplied for the table."""
    return _shown_as(manifest, statistic)[0]


def unit_of(manifest: Manifest, statistic: str) -> str:
    """Return the unit in which the table shows a statistic; empty if it has none."""
    return _shown_as(manifest, statistic)[1]


def _shown_as(manifest: Manifest, statistic: str) -> tuple[float, str]:
    """Return the factor and the unit of a statistic.

    They are the table's for its own statistic, and also for fractions if its own is one.
    """
    table = manifest.table
    fractions = [
        name
        for name, known in manifest.known([statistic, table.statistic]).items()
        if known.is_fraction
    ]
    if statistic == table.statistic or {statistic, table.statistic} <= {*fractions}:
        return table.scale, table.unit
    return default_unit(statistic, statistic in fractions)


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

    All are in the table's unit. Replicates that were stopped, diverged or failed
    are counted, but not averaged.

    Returns:
        One row per entry, in the manifest's order: `run_id`, `label.<axis>` (typed as
        in the manifest), `replicates` (n), `stopped`, `diverged`, `failed`,
        `missing` (counts of replicates), `without` (those of `replicates` that have no value
        of the table's own statistic, and so are not in its mean), `mean.<statistic>`,
        `std.<statistic>` (that of one new partition and seed) and `used.<statistic>` (how many
        replicates are in the mean), the other columns of
        `nested` for the table's own statistic, and `above_chance`:
        with a the mean of `last5` and c = 1 / number of classes, (a - c) / (1 - c), which is
        0 for guessing and 1 for no error, or NaN if c is not known.

    Raises:
        ValueError: the runs have no such statistic.
    """
    names = statistics(manifest.table)
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
        valued = values.groupby(finished["run_id"]).count().reindex(ids, fill_value=0)
        frame[f"used.{name}"] = valued.to_numpy(int)
        if name == manifest.table.statistic:
            frame["without"] = frame["replicates"] - frame[f"used.{name}"]
            own = found.drop(columns=["mean", "std"]).reset_index(drop=True)
            frame = frame.join(own)
    frame["above_chance"] = _above_chance(finished).reindex(ids).to_numpy(float)
    return frame


def _above_chance(finished: pd.DataFrame) -> "pd.Series[float]":
    """Return by run id how far the mean accuracy has come from guessing to no error."""
    if LEVEL_STATISTIC not in finished or "chance" not in finished:
        return pd.Series(dtype=float)
    numbers = finished[[LEVEL_STATISTIC, "chance"]].astype(float)
    means = numbers.groupby(finished["run_id"]).mean()
    return (means[LEVEL_STATISTIC] - means["chance"]) / (1 - means["chance"])


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
