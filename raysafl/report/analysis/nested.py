"""The spread of a statistic between partitions, and between seeds within a partition.

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
"""

import numpy as np
import pandas as pd


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
