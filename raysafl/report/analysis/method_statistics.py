"""How the methods of a sweep compare over all of its settings.

docs/results.md says what each statistic is, when to use it, and what its columns are.
"""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from raysafl.report.analysis.entries import aggregate, factor
from raysafl.report.analysis.evidence import CLEAR, LEVEL, Floats, holm
from raysafl.report.analysis.layout import Layout, label_text, labels_text
from raysafl.report.analysis.nested import units_of
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest

if TYPE_CHECKING:
    from raysafl.storage.results import SweepResults

# The method that others are compared with, if a sweep has it; otherwise its first one.
BASELINE = "FedAvg"
POWER = 0.8
# Largest number of methods that a report compares.
MOST_METHODS = 48
# How often a bootstrap draws; less often if it would draw more than so many scores.
RESAMPLES = 2_000
DRAWN = 20_000_000
# At how many scores a performance profile is evaluated.
PROFILE = 101
# An axis with such a name, and numbers as labels, is a learning rate.
RATE_AXIS = re.compile(r"(.*[_. ])?(lr|eta|rate)(_\w)?")


def interquartile_mean(*samples: Floats, axis: int) -> Any:
    """Return the mean of the middle half of all scores (docs/papers.md#rliable)."""
    from scipy import stats

    return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)


def mean_of_settings(*samples: Floats, axis: int) -> Any:
    """Return the mean over settings of the mean in each."""
    return np.mean([np.mean(own, axis=axis) for own in samples], axis=0)


def bootstrap(
    samples: list[Floats], estimate: Callable[..., Any], together: bool
) -> tuple[float, float, float]:
    """Return an estimate over settings and its stratified bootstrap's 95 % interval.

    The n scores of each setting are drawn anew within it. Their variance is then too small
    by the share 1 / n, so the interval is expanded (docs/papers.md#hesterberg): with g
    groups of scores that are drawn independently and f the number of scores less g, it lies
    between the quantiles a and 1 - a of the estimates that were drawn, where

        a = Phi(-sqrt((f + g) / f) t),  t the 97.5 % quantile of Student's t of f degrees.

    Args:
        samples: the scores of each setting.
        estimate: the estimate, of the samples and `axis`.
        together: whether the k-th scores of all settings are one draw, because they depend
            on each other; then g is 1, and f is that of a single setting.

    Returns:
        The estimate and the ends of its interval, which are NaN if a setting has one score.
    """
    from scipy import special, stats

    value = float(estimate(*samples, axis=-1))
    if min(map(len, samples), default=0) < 2:
        return value, math.nan, math.nan
    size = sum(map(len, samples))
    groups = 1 if together else len(samples)
    freedom = (len(samples[0]) if together else size) - groups
    quantile = special.stdtrit(freedom, (1 + LEVEL) / 2)
    tail = special.ndtr(-math.sqrt((freedom + groups) / freedom) * quantile)
    drawn = stats.bootstrap(
        samples,
        estimate,
        paired=together,
        method="percentile",
        n_resamples=max(200, min(RESAMPLES, DRAWN // size)),
        batch=max(1, 4_000_000 // size),
        random_state=np.random.default_rng(0),  # The same rows have the same interval.
    ).bootstrap_distribution
    # Minus infinity, the score of what diverged, is not interpolated.
    low = np.quantile(drawn, tail, method="lower")
    return value, float(low), float(np.quantile(drawn, 1 - tail, method="higher"))


def least_difference(std: float, seeds: int) -> float:
    """Return the least mean difference that so many pairs show in 80 % of studies.

    With n pairs whose differences have the standard deviation s, it is c s / sqrt(n), where
    the paired t test (two-sided, 5 %) has a power of 80 %: P(T > t) = 0.8 for the noncentral
    t of n - 1 degrees of freedom and noncentrality c. It is NaN for n = 1.
    """
    from scipy import special

    if seeds < 2:
        return math.nan
    limit = special.stdtrit(seeds - 1, (1 + LEVEL) / 2)
    return float(special.nctdtrinc(seeds - 1, 1 - POWER, limit)) * std / seeds**0.5


@dataclass(frozen=True)
class MethodStatistics:
    """The methods of a sweep, compared by the table's statistic over its settings.

    A setting is a choice of all labels but the method's; those count in which all methods
    have a score. Frames name methods in the order of their mean ranks.

    Attributes:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
    """

    runs: pd.DataFrame
    manifest: Manifest

    @cached_property
    def layout(self) -> Layout:
        """The layout of the axes, which names that of the methods."""
        return Layout.of(self.manifest)

    @cached_property
    def sign(self) -> int:
        """Return 1, or -1 where lower is better: the value of a score is `sign * score`."""
        known = self.manifest.statistic(self.manifest.table.statistic)
        return -1 if known is not None and not known.higher_is_better else 1

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row for each replicate, with its `method`, `setting`, `unit` and `score`.

        The unit is its seed, or its partition where all runs have several. The score is
        minus infinity, worse than all others, if the replicate diverged, or did not reach
        what a statistic such as `rounds_to_50` waits for.
        """
        name = self.manifest.table.statistic
        method = self.layout.method or ""
        others = [axis for axis in self.manifest.axes if axis != method]
        labels = self.manifest.labels()
        columns = ["run_id", "status", "replicate", "seed", "partition_seed", "seconds"]
        rows = self.runs.reindex(columns=[*columns, name])
        rows = rows[rows["status"].isin([Status.FINISHED, Status.DIVERGED])]
        score = self.sign * rows[name].astype(float) * factor(self.manifest, name)
        worst = rows["status"] == Status.DIVERGED
        worst |= score.isna() & name.startswith("rounds_to_")
        rows = rows.assign(score=score.mask(worst, -math.inf)).dropna(subset="score")
        rows = rows[rows["run_id"].isin(list(labels))]
        rows["method"] = [label_text(labels[i].get(method)) for i in rows["run_id"]]
        rows["setting"] = [labels_text(labels[i], others) for i in rows["run_id"]]
        counts = rows.groupby("setting")["method"].transform("nunique")
        rows = rows[counts == rows["method"].nunique()]
        rows = rows.assign(unit=units_of(rows))
        # Every order of the runs gives the same numbers.
        return rows.sort_values(["setting", "method", "replicate"], ignore_index=True)

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """The rank of each method in each setting: 1 is best, and equal ones share theirs."""
        means = self.rows.groupby(["setting", "method"])["score"].mean()
        ranks = means.unstack("method").rank(axis=1, ascending=False)
        return ranks[ranks.mean().sort_values(kind="stable").index]

    @property
    def methods(self) -> list[str]:
        """The methods, that with the best mean rank first."""
        return list(self.ranks)

    @property
    def baseline(self) -> str:
        """The method that others are compared with: FedAvg, or the sweep's first one."""
        first = label_text(self.layout.methods[0])
        return BASELINE if BASELINE in self.methods else first

    @property
    def is_told(self) -> bool:
        """Whether a report has a section on them: it compares methods in several settings."""
        several = 2 <= len(self.methods) <= MOST_METHODS and len(self.ranks) > 1
        return several and self.manifest.goal is None

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The score of each setting and unit (rows) and method; NaN where it has none."""
        means = self.rows.groupby(["setting", "unit", "method"])["score"].mean()
        return means.unstack("method").reindex(columns=self.methods)

    @cached_property
    def normalised(self) -> pd.DataFrame:
        """The scores from 0, the worst of the setting, to 1, its best; 0 of what diverged."""
        finite = self.scores.where(np.isfinite(self.scores))
        by_setting = finite.stack().groupby(level="setting")
        low = finite.index.get_level_values("setting").map(by_setting.min())
        high = finite.index.get_level_values("setting").map(by_setting.max())
        # Where all are equal, they are 1.
        scaled = finite.sub(low, axis=0).div(high - low, axis=0).fillna(finite * 0 + 1)
        return scaled.mask(np.isneginf(self.scores), 0.0)

    @cached_property
    def interquartile_means(self) -> pd.DataFrame:
        """The interquartile mean of each method's scores, and of the normalised ones."""
        lost = np.isneginf(self.rows["score"]).groupby(self.rows["method"])
        rows = []
        for method, rank in self.ranks.mean().items():
            iqm, *ends = self._over_settings(self.scores[method])
            scaled = self._over_settings(self.normalised[method])
            low, high = sorted(self.sign * end for end in ends)
            rows.append((method, rank, self.sign * iqm, low, high, *scaled))
        names = ["method", "rank", "iqm", "low", "high", "normalised"]
        names += ["normalised_low", "normalised_high"]
        counts = lost.agg(replicates="size", diverged="sum")
        return pd.DataFrame(rows, columns=names).join(counts, on="method")

    def _over_settings(
        self,
        values: "pd.Series[float]",
        estimate: Callable[..., Any] = interquartile_mean,
    ) -> tuple[float, float, float]:
        """Return an estimate with its interval, of values by `setting` and `unit`."""
        there = values.dropna()
        together = units_of(self.rows).name == "partition"
        if together:
            # A partition is drawn with all of its settings, so it has to be in all of them.
            there = values.unstack("unit").dropna(axis=1).stack()
        samples = [own.to_numpy() for _, own in there.groupby(level="setting")]
        return bootstrap(samples, estimate, together)

    @cached_property
    def profiles(self) -> pd.DataFrame:
        """Which fraction of the scores of a method is better than `tau`."""
        own = self.scores
        finite = own.to_numpy()[np.isfinite(own)]
        taus = np.linspace(finite.min(), finite.max(), PROFILE) if finite.size else []
        better = {self.sign * t: (own > t).sum() / own.notna().sum() for t in taus}
        found = pd.DataFrame(better, index=own.columns).rename_axis(columns="tau")
        return found.stack().rename("fraction").reset_index()

    @cached_property
    def improvement(self) -> pd.DataFrame:
        """How probably a method is better than the baseline and than the second best one.

        Scores of equal setting and seed are compared, and equal ones count a half. `least`
        is the `least_difference` in one setting, from differences within settings.
        """
        rows = []
        for over in dict.fromkeys([self.baseline, *self.methods[1:2]]):
            for method in [m for m in self.methods if m != over]:
                both = self.scores[[method, over]].dropna()
                # The difference of two that diverged is NaN, and they are equal.
                gaps = (both[method] - both[over]).replace(math.inf, math.nan)
                own = gaps.replace(-math.inf, math.nan).groupby(level="setting")
                wins = both[method].gt(both[over]) + 0.5 * both[method].eq(both[over])
                found = self._over_settings(wins, mean_of_settings)
                seeds = int(own.size().min())
                std = math.sqrt(own.var().mean())
                least = least_difference(std, seeds)
                rows.append((method, over, len(both), *found, seeds, std, least))
        names = ["method", "over", "pairs", "probability", "low", "high"]
        return pd.DataFrame(rows, columns=[*names, "seeds", "std", "least"])

    @cached_property
    def friedman(self) -> "pd.Series[float]":
        """Friedman's statistic and p: are all ranks equal? (docs/papers.md#demsar)"""
        from scipy import stats

        ranks = self.ranks
        found = math.nan, math.nan
        if len(ranks) > 1 and len(self.methods) > 2 and ranks.std(axis=1).any():
            found = stats.friedmanchisquare(*(ranks[m] for m in ranks))
        return pd.Series(found, ["statistic", "p"])

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Wilcoxon's signed-rank test of each pair over settings, adjusted by `holm`.

        The difference to a method that diverged in a setting is larger than all others.
        """
        from scipy import stats

        means = self.rows.groupby(["setting", "method"])["score"].mean()
        finite = means[np.isfinite(means)]
        far = finite.min() - 2 * np.ptp(finite) - 1 if len(finite) else 0.0
        means = means.replace(-math.inf, far).unstack("method")
        rows = []
        for method, other in itertools.combinations(self.methods, 2):
            gaps = (means[method] - means[other]).to_numpy()
            p = float(stats.wilcoxon(gaps).pvalue) if gaps.any() else 1.0
            rows.append((method, other, (gaps > 0).sum(), (gaps < 0).sum(), p))
        found = pd.DataFrame(rows, columns=["method", "other", "wins", "losses", "p"])
        return found.assign(holm=holm(found["p"].to_numpy(float)))

    @cached_property
    def groups(self) -> list[list[str]]:
        """The largest groups of neighbours by rank of which no pair is told apart."""
        clear = self.pairs[self.pairs["holm"] < CLEAR]
        apart = set(zip(clear["method"], clear["other"], strict=True))
        found: list[list[str]] = []
        for first in range(len(self.methods)):
            rest = self.methods[first:]
            alike = [
                rest[:n]
                for n in range(2, len(rest) + 1)
                if apart.isdisjoint(itertools.combinations(rest[:n], 2))
            ]
            if alike and not (found and alike[-1][-1] in found[-1]):
                found.append(alike[-1])
        return found

    @cached_property
    def rates(self) -> pd.DataFrame:
        """The best learning rate of each method, and which are within its standard error.

        Means over the other labels are compared, where they have all rates. Rates at which
        a replicate diverged are never near the best. There are no rows if no axis is a rate.
        """
        layout = self.layout
        entries = aggregate(self.runs, self.manifest).assign(all="all")
        mean = self.sign * entries[f"mean.{self.manifest.table.statistic}"]
        entries["score"] = mean.mask(entries["diverged"] > 0, -math.inf)
        rows = []
        for axis in filter(RATE_AXIS.fullmatch, sorted(layout.varying)):
            if any(isinstance(label, str) for label in layout.values[axis]):
                continue
            by = "all" if layout.method == axis else f"label.{layout.method}"
            index = dict.fromkeys([by, *(f"label.{a}" for a in layout.axes)])
            wide = entries.set_index([*index])[["score", "error"]]
            wide = wide.unstack(f"label.{axis}")
            for method, own in wide.groupby(level=by, sort=False):
                whole = own[own["score"].notna().all(axis=1)]
                score = whole["score"].mean()
                if np.isfinite(score.max()):
                    best = score.idxmax()
                    error = math.sqrt((whole["error"][best] ** 2).sum()) / len(whole)
                    far = score < score[best] - error
                    span = score.index[~far & (far.cumsum() == far.cumsum()[best])]
                    found = (best, self.sign * score[best], error, span[0], span[-1])
                    rows.append((axis, label_text(method), len(score), *found))
        names = ["axis", "method", "rates", "best", "score", "error", "low", "high"]
        return pd.DataFrame(rows, columns=names)

    @cached_property
    def bencheval(self) -> pd.DataFrame:
        """The scores as rows that bencheval reads: lower errors are better, and 0 is least.

        The error of a fraction is 1 less it, of others how far they are behind the best.
        That of what diverged is the largest of all. Time is a share of the run's seconds.
        """
        known = self.manifest.statistic(self.manifest.table.statistic)
        scale = self.manifest.table.scale
        best = self.rows["score"].max()
        if known is not None and known.is_fraction:
            best = scale if self.sign > 0 else 0.0
        error = best - self.rows["score"]
        error = error.mask(np.isinf(error), error[np.isfinite(error)].max())
        sizes = self.rows.groupby("run_id")["seed"].transform("size")
        found = self.rows[["method", "setting", "seed"]].assign(
            metric_error=error / scale, time_train_s=self.rows["seconds"] / sizes
        )
        return found.rename(columns={"setting": "task"})


def method_statistics(results: "SweepResults") -> MethodStatistics:
    """Compare the methods of a sweep over all of its settings.

    Args:
        results: the results of the sweep, as `fl.load("results/study")` returns them.

    Raises:
        ValueError: there is no setting in which two methods or more have ended.
    """
    found = MethodStatistics(results.runs, results.store.manifest())
    if len(found.methods) < 2:
        raise ValueError(
            f"{results.store.path} has no setting in which two methods or more have ended: "
            "methods are the labels of the axis 'algorithm' or 'method'"
        )
    return found
