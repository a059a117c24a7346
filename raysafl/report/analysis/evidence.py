"""How certain the numbers are: intervals and paired tests."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysafl.report.analysis.entries import aggregate, factor, units_of
from raysafl.report.analysis.layout import Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest

LEVEL = 0.95
# An adjusted p-value below this tells two methods apart.
CLEAR = 0.05
Floats = NDArray[np.float64]


def t_quantile(freedom: Floats) -> Floats:
    """Return the (1 + level) / 2 quantile of Student's t; NaN without freedom."""
    # Imported here, because a table on the screen needs no interval, and scipy is large.
    from scipy.special import stdtrit

    quantile: Floats = stdtrit(freedom, (1 + LEVEL) / 2)
    return np.where(freedom > 0, quantile, np.nan)


def estimated(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Return the entries of a table, and how certain their means are.

    Returns:
        The columns of `raysafl.report.analysis.entries.aggregate`, and `half.mean`: half the
        width of the 95 % interval of the mean.
    """
    entries = aggregate(runs, manifest)
    freedom = entries["freedom"].to_numpy(float)
    entries["half.mean"] = entries["error"] * t_quantile(freedom)
    return entries


def holm(p: Floats) -> Floats:
    """Return Holm's adjusted p-values, valid however the tests depend on each other.

    Source: docs/papers.md#holm.
    """
    order = np.argsort(p)
    steps = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def paired(runs: pd.DataFrame, manifest: Manifest, layout: Layout) -> pd.DataFrame:
    """Compare every method with the baseline, seed by seed, for all other labels.

    Where all runs have several partitions, their means over a partition's seeds take the
    place of seeds.

    Replicates with the same seed see the same cohorts whatever the algorithm. So the
    differences of their two numbers are tested (paired t test, two-sided), which is
    sharper than a comparison of means. `holm` adjusts for all comparisons of the sweep.

    Returns:
        One row per comparison: `label.<axis>`, `baseline` (its method), `seeds` (how
        many seeds both methods finished), `diff` (mean difference to the baseline, in
        the table's unit), `half` (half the width of its 95 % interval), `p` and `holm`;
        NaN where all differences are equal, so that a t test has no answer. A
        comparison with fewer than two common seeds is left out.
    """
    axis = layout.method
    done = runs[runs["status"] == Status.FINISHED] if len(runs) else runs
    bases = baselines(manifest, {axis: layout.baseline}) if axis else []
    both = [(e, base) for e, base in zip(manifest.entries, bases, strict=False) if base]
    columns = [*(f"label.{a}" for a in manifest.axes), "baseline"]
    rows = [[*entry.key(manifest.axes), layout.baseline] for entry, _ in both]
    pairs = [(entry.run_id, base) for entry, base in both]
    differences = paired_differences(pairs, done, manifest)
    # As objects, the label None stays what it is beside numbers.
    labels = pd.DataFrame(rows, columns=columns, dtype=object)
    compared = labels.join(differences, how="inner").reset_index(drop=True)
    # Only comparisons with a p-value count for the adjustment.
    tested = compared["p"].notna()
    compared["holm"] = np.nan
    compared.loc[tested, "holm"] = holm(compared.loc[tested, "p"].to_numpy(float))
    return compared


def paired_differences(
    pairs: Sequence[tuple[str, str]], done: pd.DataFrame, manifest: Manifest
) -> pd.DataFrame:
    """Compare the runs of each pair seed by seed.

    Args:
        pairs: the ids of each run and of its baseline.
        done: the finished replicates.
        manifest: the sweep, whose table names the statistic.

    Returns:
        `seeds`, `diff`, `half` and `p` of the pairs with two common seeds or more, by
        the number of the pair.
    """
    # Imported here, because scipy is large. Its `stats` would take a second more.
    from scipy.special import stdtr

    if not pairs or done.empty:
        return pd.DataFrame(columns=["seeds", "diff", "half", "p"], dtype=float)
    name = manifest.table.statistic
    values = done.reindex(columns=[name])[name].astype(float) * factor(manifest, name)
    means = values.groupby([done["run_id"], units_of(done).rename("seed")]).mean()
    numbers = means.rename("value").reset_index()
    base = numbers.rename(columns={"run_id": "base", "value": "base_value"})
    both = pd.DataFrame(pairs, columns=["run_id", "base"]).reset_index(names="pair")
    both = both.merge(numbers, on="run_id").merge(base, on=["base", "seed"])
    # Infinite losses have no difference, which needs no warning.
    with np.errstate(invalid="ignore", divide="ignore"):
        each = (both["value"] - both["base_value"]).dropna().groupby(both["pair"])
        found = each.agg(["size", "mean", "std", "min", "max"])
        found = found[found["size"] >= 2]
        # Equal differences up to rounding have no spread, and so no t test.
        largest = np.maximum(found["min"].abs(), found["max"].abs())
        std = found["std"].where(found["max"] - found["min"] > 1e-9 * largest)
        error = std / np.sqrt(found["size"])
        freedom = found["size"].to_numpy(float) - 1
        p = 2 * stdtr(freedom, -np.abs(found["mean"] / error))
    half = error * t_quantile(freedom)
    return pd.DataFrame(
        {"seeds": found["size"], "diff": found["mean"], "half": half, "p": p}
    )


def baselines(manifest: Manifest, labels: Mapping[str, Label]) -> list[str]:
    """Return the run that each entry of a sweep differs from in these labels alone.

    It is empty for entries that have these labels themselves, and where there is no such
    run.

    Args:
        labels: the labels of a baseline on some axes.
    """
    # Entries are found by their labels, in any order of the axes.
    keys = [frozenset(entry.labels.items()) for entry in manifest.entries]
    of_key = dict(zip(keys, (entry.run_id for entry in manifest.entries), strict=True))
    others = [frozenset({**e.labels, **labels}.items()) for e in manifest.entries]
    pairs = zip(keys, others, strict=True)
    return ["" if own == other else of_key.get(other, "") for own, other in pairs]
