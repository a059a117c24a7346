"""How certain the numbers are: intervals, verdicts against the paper, paired tests."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysafl.core.text import count
from raysafl.report.analysis.baseline import baselines
from raysafl.report.analysis.entries import (
    aggregate,
    compare,
    factor,
    groups_of,
    matches,
)
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.nested import nested, partitions_of, units_of
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest, Table

LEVEL = 0.95
# An adjusted p-value below this tells two methods apart.
CLEAR = 0.05
VERDICTS = {
    "inside": "Δ ± holds 0: our runs give such a number",
    "outside": "it does not: runs like ours give such a number in 5 % of cases or fewer",
}
Floats = NDArray[np.float64]


def rule(table: Table) -> str:
    """Explain how a printed number is judged, as Markdown."""
    words = "\n".join(f"- **{name}**: {why}" for name, why in VERDICTS.items())
    return (
        f"A printed number of `{table.statistic}` is judged by its place among the results that "
        "one new partition would give. Between partitions and between seeds within one, results "
        "have standard deviations, from an analysis of variance. The paper's number is the mean "
        f"of {count(table.seeds, 'seed')} on one partition, so z = (ours - paper) / "
        f"sqrt(between² + within² / {table.seeds} + (standard error of our mean)²). Δ is ours "
        f"minus the paper's, and its ± the half width of the {LEVEL:.0%} prediction interval "
        "(Student's t, with one degree of freedom fewer than there are partitions, or seeds if "
        "there is one partition). *Below* is the share of our partitions with a lower mean than "
        "the paper's. With one partition, nothing is known of other partitions, and between "
        f"counts as 0; with one seed for each, their sum counts as between.\n\n{words}"
    )


def t_quantile(freedom: Floats) -> Floats:
    """Return the (1 + level) / 2 quantile of Student's t; NaN without freedom."""
    # Imported here, because a table on the screen needs no interval, and scipy is large.
    from scipy.special import stdtrit

    quantile: Floats = stdtrit(freedom, (1 + LEVEL) / 2)
    return np.where(freedom > 0, quantile, np.nan)


def judged(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Return the entries of a table with the paper's numbers, and how these are judged.

    Returns:
        The columns of `raysafl.report.analysis.entries.compare`, and `half.mean` (half the
        width of the 95 % interval of our mean), `half.diff`, `z`, `below` and `verdict`
        (one of `VERDICTS`, or empty where nothing can be judged) as `rule` explains.
    """
    name = manifest.table.statistic
    entries = compare(aggregate(runs, manifest), manifest)
    freedom = entries["freedom"].to_numpy(float)
    entries["half.mean"] = entries["error"] * t_quantile(freedom)
    found = entries.rename(columns={f"std.{name}": "std"})
    diff = entries[f"diff.{name}"]
    half, z = _place_among(found, diff, manifest)
    cases = [(diff + half).isna(), diff.abs() <= half]
    verdict = np.select(cases, ["", "inside"], "outside")
    entries = entries.assign(**{"half.diff": half, "z": z, "verdict": verdict})
    means = _replicates(runs, manifest).groupby(level="partition").mean()
    printed = entries["paper.mean"].to_numpy(float)
    lower = means.reindex(columns=entries["run_id"]).to_numpy() < printed
    several = (entries["partitions"] > 1) & entries["z"].notna()
    entries["below"] = (lower.sum(axis=0) / entries["partitions"]).where(several)
    return entries


def _place_among(
    found: pd.DataFrame, diff: "pd.Series[float]", manifest: Manifest
) -> tuple[Floats, Floats]:
    """Return the half width of the prediction interval of differences, and their z.

    Args:
        found: from `nested`, in the table's unit.
        diff: ours minus the paper's.
    """
    within = found["within"].fillna(0)
    # Without `within`, `std` cannot be divided; without `between`, it is `within`.
    between = found["between"].fillna(found["std"].where(found["within"].isna(), 0))
    variance = between**2 + within**2 / manifest.table.seeds + found["error"] ** 2
    deviation = np.sqrt(variance.to_numpy(float))
    with np.errstate(divide="ignore", invalid="ignore"):
        z = diff.to_numpy(float) / deviation
    return deviation * t_quantile(found["freedom"].to_numpy(float)), z


def _replicates(runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Return the table's statistic of the finished replicates, in the table's unit.

    Returns:
        A column for each run with a printed number, by its id, and a row for each pair
        `partition`, `replicate`.
    """
    name = manifest.table.statistic
    ids = [
        entry.run_id
        for entry in manifest.entries
        if any(matches(p, entry.labels) for p in manifest.paper)
    ]
    if runs.empty or name not in runs:
        runs = pd.DataFrame(columns=["run_id", "status", "replicate", name])
    done = runs[(runs["status"] == Status.FINISHED) & runs["run_id"].isin(ids)]
    values = done[name].astype(float) * factor(manifest, name)
    done = done.assign(partition=partitions_of(done), value=values)
    return done.pivot(
        index=["partition", "replicate"], columns="run_id", values="value"
    )


def bias(entries: pd.DataFrame, runs: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Judge the mean signed difference to the paper of groups of entries.

    Replicates of one number have one partition and one seed in all entries. So the mean
    over the entries of a group is a result of its own, which is judged as that of an entry
    is (`rule`): the entries' dependence is in its spread.

    Returns:
        Rows `group` ("all entries" or "<axis> = <value>"), `entries`, `lower` (how many of
        them are lower than the paper's), `diff` (the mean of ours minus the paper's),
        `half` and `z`; NaN where no replicate has all entries of the group.
    """
    name = manifest.table.statistic
    both = entries[entries[f"diff.{name}"].notna()]
    if both.empty:
        return pd.DataFrame()
    wide = _replicates(runs, manifest)
    rows = []
    for group, own in groups_of(both, manifest.axes).items():
        diff = own[f"diff.{name}"]
        means = wide[list(own["run_id"])].dropna().mean(axis=1)
        each = means.rename("value").reset_index().assign(group=group)
        found = nested(each["value"], each["group"], each["partition"])
        found = found.reindex([group])
        half, z = _place_among(found, pd.Series({group: diff.mean()}), manifest)
        rows.append(
            {
                "group": group,
                "entries": len(own),
                "lower": int((diff < 0).sum()),
                "diff": float(diff.mean()),
                "half": float(half[0]),
                "z": float(z[0]),
            }
        )
    return pd.DataFrame(rows)


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
    rows: list[dict[str, Any]] = []
    pairs: list[tuple[str, str]] = []
    if axis and len(done):
        bases = baselines(manifest, {axis: layout.baseline})
        for entry, base in zip(manifest.entries, bases, strict=True):
            if base:
                labels = {f"label.{name}": v for name, v in entry.labels.items()}
                rows.append(labels | {"baseline": layout.baseline})
                pairs.append((entry.run_id, base))
    columns = [*(f"label.{a}" for a in manifest.axes), "baseline"]
    found = pd.DataFrame(rows, columns=columns)
    differences = paired_differences(pairs, done, manifest)
    found = found.join(differences, how="inner").reset_index(drop=True)
    # Only comparisons with a p-value count for the adjustment.
    tested = found["p"].notna()
    found["holm"] = np.nan
    found.loc[tested, "holm"] = holm(found.loc[tested, "p"].to_numpy(float))
    return found


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
    columns = {"seeds": int, "diff": float, "half": float, "p": float}
    parts = [pd.DataFrame({n: pd.Series(dtype=kind) for n, kind in columns.items()})]
    if pairs:
        name = manifest.table.statistic
        unit = units_of(done)
        values = done.reindex(columns=[name])[name].astype(float)
        values *= factor(manifest, name)
        means = values.groupby([done["run_id"], unit.rename("seed")]).mean()
        numbers = means.rename("value").reset_index()
        base = numbers.rename(columns={"run_id": "base", "value": "base_value"})
        frame = pd.DataFrame(pairs, columns=["run_id", "base"]).reset_index(
            names="pair"
        )
        both = frame.merge(numbers, on="run_id").merge(base, on=["base", "seed"])
        both = both.dropna().sort_values("pair", kind="stable")
        seeds = both.groupby("pair")["value"].transform("size")
        # Pairs with equally many common seeds are tested together.
        for n, some in both[seeds >= 2].groupby(seeds):
            ours, theirs = (
                some[name].to_numpy(float).reshape(-1, int(str(n)))
                for name in ("value", "base_value")
            )
            tested = pd.DataFrame(_paired_test(ours, theirs), some["pair"].unique())
            parts.append(tested.assign(seeds=n)[list(columns)])
    return pd.concat([part for part in parts if len(part)] or parts)


def _paired_test(ours: Floats, base: Floats) -> dict[str, Floats]:
    """Return mean difference, half its interval and p of each pair, [pairs, seeds]."""
    # Imported here, because scipy is large. Its `stats` would take a second more.
    from scipy.special import stdtr

    # The difference of infinite losses is NaN, which needs no warning.
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = ours - base
        # Equal differences up to rounding have no spread, and so no t test.
        some = np.ptp(difference, axis=1) > 1e-9 * np.abs(difference).max(axis=1)
        mean = pd.DataFrame(difference).mean(axis=1).to_numpy()
        n = ours.shape[1]
        error = np.where(some, difference.std(axis=1, ddof=1), np.nan) / math.sqrt(n)
        p = 2 * stdtr(n - 1, -np.abs(mean / error))
    return {"diff": mean, "half": error * t_quantile(np.array(n - 1.0)), "p": p}
