"""How certain the numbers are: intervals, verdicts against the paper, paired tests."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysafl.report.analysis.entries import factor
from raysafl.report.analysis.layout import Key, Layout
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest, Table

LEVEL = 0.95
# Two means are near each other within this many percentage points, or, in another unit,
# within this share of the paper's number.
POINTS = 2.0
SHARE = 0.05
VERDICTS = {
    "agrees": "the interval of Δ holds 0, and the means are near each other",
    "close": "the interval leaves 0 out, but the means are near each other",
    "unclear": "the interval holds 0, but the means are not near: too much spread to tell",
    "off": "the interval leaves 0 out, and the means are not near each other",
}
Floats = NDArray[np.float64]


def near(table: Table) -> str:
    """Say when two means of this table count as near each other."""
    return (
        f"{POINTS:g} percentage points"
        if table.unit == "%"
        else f"{SHARE:.0%} of the paper's"
    )


def rule(table: Table) -> str:
    """Explain how a verdict is found, as Markdown."""
    words = "\n".join(f"- **{name}**: {why}" for name, why in VERDICTS.items())
    spread = "If it prints no standard deviation, ours stands for both."
    if table.printed_spread == "last5":
        spread = (
            "Its standard deviation is that of the last five accuracies of one run, which "
            "compares with `last5_std` and says nothing about seeds, so ours stands for both."
        )
    return (
        f"Verdict on `{table.statistic}`: Δ is ours minus the paper's, its {LEVEL:.0%} interval "
        "Welch's, from both means and standard deviations. The paper's number of seeds is "
        f"taken to be ours. {spread} Near "
        f"is within {near(table)}; if we have no standard deviation (one seed), nearness "
        f"alone decides.\n\n{words}"
    )


def _t_quantile(freedom: Floats) -> Floats:
    """Return the (1 + level) / 2 quantile of Student's t; NaN without freedom."""
    # Imported here, because a table on the screen needs no interval, and scipy is large.
    from scipy.special import stdtrit

    quantile: Floats = stdtrit(freedom, (1 + LEVEL) / 2)
    return np.where(freedom > 0, quantile, np.nan)


def half_width(std: Floats, n: Floats) -> Floats:
    """Return half the width of the t interval of a mean of n replicates.

        t_{(1 + level) / 2, n - 1} * std / sqrt(n)

    It is NaN for fewer than two replicates.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        width: Floats = _t_quantile(n - 1) * std / np.sqrt(n)
    return width


def welch(std: Floats, other: Floats, n: Floats, m: Floats) -> Floats:
    """Return half the width of Welch's interval of a difference of two means.

    With a = std^2 / n and b = other^2 / m, the standard error is sqrt(a + b) and the
    degrees of freedom are (a + b)^2 / (a^2 / (n - 1) + b^2 / (m - 1)). It is NaN
    without a spread, or if n or m is below 2. Source: docs/papers.md#welch.

    Args:
        std: standard deviations of the first means.
        other: standard deviations of the second means.
        n: numbers of replicates of the first means.
        m: numbers of replicates of the second means.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        a = std**2 / n
        b = other**2 / m
        freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1))
        width = _t_quantile(freedom) * np.sqrt(a + b)
    return np.where(a + b == 0, 0.0, width)


def add_verdicts(compared: pd.DataFrame, manifest: Manifest) -> pd.DataFrame:
    """Add to each entry how certain its number is, and the verdict against the paper's.

    Args:
        compared: from `raysafl.report.analysis.entries.compare`.
        manifest: the sweep.

    Returns:
        The entries with `half.mean` and `half.diff` (half the width of the 95 % intervals
        of our mean and of the difference; NaN if there is none), `deviations` (the
        difference in combined standard deviations, sqrt(ours^2 + the paper's^2)) and
        `verdict` (one of `VERDICTS`, or empty where nothing can be compared).
    """
    table = manifest.table
    entries = compared.copy()
    diff = entries[f"diff.{table.statistic}"].to_numpy(float)
    std = entries[f"std.{table.statistic}"].to_numpy(float)
    n = entries["replicates"].to_numpy(float)
    printed = entries["paper.std"].to_numpy(float)

    # A paper that prints no spread over seeds, or no number of seeds, is taken to have
    # ours.
    unknown = np.isnan(printed) | (table.printed_spread != "seeds")
    theirs = np.where(unknown, std, printed)
    entries["half.mean"] = half_width(std, n)
    half = welch(std, theirs, n, n)
    entries["half.diff"] = half
    with np.errstate(invalid="ignore", divide="ignore"):
        entries["deviations"] = np.abs(diff) / np.sqrt(
            np.nan_to_num(std) ** 2 + theirs**2
        )
    limit = (
        POINTS
        if table.unit == "%"
        else SHARE * np.abs(entries["paper.mean"].to_numpy(float))
    )
    close = np.abs(diff) <= limit
    holds = np.abs(diff) <= half
    words = np.where(
        close, np.where(holds, "agrees", "close"), np.where(holds, "unclear", "off")
    )
    entries["verdict"] = np.where(np.isnan(diff), "", words)
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
    """Compare every method with the first one, seed by seed, for all other labels.

    Replicates with the same seed see the same cohorts whatever the algorithm. So the
    differences of their two numbers are tested (paired t test, two-sided), which is
    sharper than a comparison of means. `holm` adjusts for all comparisons of the sweep.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        layout: the layout of its axes.

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
        baseline = layout.values[axis][0]
        baselines = {
            _other_labels(entry.labels, axis): entry
            for entry in manifest.entries
            if entry.labels.get(axis) == baseline
        }
        for entry in manifest.entries:
            base = baselines.get(_other_labels(entry.labels, axis))
            if base and entry.labels.get(axis) != baseline:
                labels = {f"label.{name}": v for name, v in entry.labels.items()}
                rows.append(labels | {"baseline": baseline})
                pairs.append((entry.run_id, base.run_id))
    columns = [*(f"label.{a}" for a in manifest.axes), "baseline"]
    found = pd.DataFrame(rows, columns=columns)
    differences = _differences(pairs, done, manifest)
    found = found.join(differences, how="inner").reset_index(drop=True)
    # Only comparisons with a p-value count for the adjustment.
    tested = found["p"].notna()
    found["holm"] = np.nan
    found.loc[tested, "holm"] = holm(found.loc[tested, "p"].to_numpy(float))
    return found


def _other_labels(labels: Mapping[str, Label], method: str) -> Key:
    """Return the labels on all axes but the method's."""
    return tuple(value for axis, value in labels.items() if axis != method)


def _differences(
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
        numbers = done[["run_id", "seed"]].assign(
            value=done[name].astype(float) * factor(manifest, name)
        )
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
    half, p = np.full((2, len(ours)), np.nan)
    # The difference of infinite losses is NaN, which needs no warning.
    with np.errstate(invalid="ignore"):
        difference = ours - base
        # Equal differences up to rounding have no spread, and so no t test.
        some = np.ptp(difference, axis=1) > 1e-9 * np.abs(difference).max(axis=1)
        mean = pd.DataFrame(difference).mean(axis=1).to_numpy()
    if some.any():
        # scipy.stats takes more than a second to import, so only a test does it.
        from scipy import stats

        test = stats.ttest_rel(ours[some], base[some], axis=1)
        low, high = test.confidence_interval(LEVEL)
        half[some] = (high - low) / 2
        p[some] = test.pvalue
    return {"diff": mean, "half": half, "p": p}
