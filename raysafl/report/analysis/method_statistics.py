"""How the methods of a sweep compare over all of its settings (docs/results.md)."""

import itertools
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd

from raysafl.report.analysis.entries import aggregate, factor
from raysafl.report.analysis.evidence import CLEAR, LEVEL, Floats, holm, paired
from raysafl.report.analysis.layout import Layout, labels_text
from raysafl.report.analysis.nested import units_of
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest, label_text

POWER = 0.8
# The interval of an interquartile mean needs so many scores of each setting; `FEW` are enough
# in `FEW` settings whose scores are independent.
ENOUGH = 5
FEW = 3
# Largest number of methods that a report compares.
MOST_METHODS = 48
# An axis with such a name, and numbers as labels, is a learning rate.
RATE_AXIS = re.compile(r"(.*[_. ])?(lr|eta|rate)(_\w)?")


def interquartile_mean(*samples: Floats, axis: int) -> Any:
    """Return the mean of the middle half of all scores (docs/papers.md#rliable)."""
    from scipy import stats

    return stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis)


def bootstrap(samples: list[Floats], together: bool) -> tuple[float, float, float]:
    """Return the interquartile mean and its stratified bootstrap's 95 % interval.

    The n scores of each setting are drawn anew within it. Their variance is too small by
    the share 1 / n, so the interval is expanded (docs/papers.md#hesterberg): it lies between
    the quantiles a and 1 - a of what was drawn, a = Phi(-sqrt((f + g) / f) t), where g
    groups of scores are drawn independently, f is the number of scores less g, and t is the
    97.5 % quantile of Student's t with f degrees of freedom. Its ends are NaN if a setting
    has fewer than five scores, or than three where there are three settings or more, as so
    few vary too little: in simulated studies the interval then held the true mean in 52 to
    90 % of cases, and otherwise in 92 % or more.

    Args:
        samples: the scores of each setting.
        together: whether the k-th scores of all settings depend on each other and are one
            draw; then g is 1 and f that of a single setting.
    """
    from scipy import special, stats

    value = float(interquartile_mean(*samples, axis=-1))
    is_wide = len(samples) >= FEW and not together
    if min(map(len, samples), default=0) < (FEW if is_wide else ENOUGH):
        return value, math.nan, math.nan
    size = sum(map(len, samples))
    groups = 1 if together else len(samples)
    freedom = (len(samples[0]) if together else size) - groups
    quantile = special.stdtrit(freedom, (1 + LEVEL) / 2)
    tail = special.ndtr(-math.sqrt((freedom + groups) / freedom) * quantile)
    # What diverged has the score minus infinity, of which there is no standard deviation.
    with np.errstate(invalid="ignore"):
        drawn = stats.bootstrap(
            samples,
            interquartile_mean,
            paired=together,
            method="percentile",
            n_resamples=max(200, min(2_000, 4_000_000 // size)),
            batch=max(1, 4_000_000 // size),
            random_state=np.random.default_rng(0),  # Equal rows have equal intervals.
        ).bootstrap_distribution
    low = np.quantile(drawn, tail, method="lower")
    return value, float(low), float(np.quantile(drawn, 1 - tail, method="higher"))


def proportion(
    wins: list[Floats], together: bool = False
) -> tuple[float, float, float]:
    """Return the mean share of wins over settings and its 95 % interval.

    The interval is Clopper and Pearson's (docs/papers.md#clopper) of N pairs: its ends are
    quantiles of Beta(p N, N - p N + 1) and Beta(p N + 1, N - p N), where p is the mean share.
    With n_s pairs in each of S settings, N = S^2 / sum_s 1 / n_s, which is their number where
    all n_s are equal. Settings with different shares vary less than N pairs of the share p do
    (docs/papers.md#hoeffding), and so do ties, which count a half, so the interval is rather
    too wide. It has a width where all pairs are won, too. Its ends are NaN if a setting has
    one pair, as elsewhere.

    Args:
        wins: the wins of each setting: 1, a half or 0 for each pair.
        together: whether the k-th pairs of all settings are one draw; then N is their number
            in one setting.
    """
    from scipy.special import betaincinv

    value = float(np.mean([own.mean() for own in wins])) if wins else math.nan
    sizes = np.array([len(own) for own in wins])
    if not len(sizes) or sizes.min() < 2:
        return value, math.nan, math.nan
    number = sizes[0] if together else len(sizes) ** 2 / (1 / sizes).sum()
    won = number * value
    lost = number - won
    tail = (1 - LEVEL) / 2
    low = betaincinv(won, lost + 1, tail) if value > 0 else 0.0
    high = betaincinv(won + 1, lost, 1 - tail) if value < 1 else 1.0
    return value, float(low), float(high)


def least_difference(std: float, seeds: int) -> float:
    """Return the least mean difference that so many pairs show in 80 % of studies.

    With n pairs whose differences have the standard deviation s, it is c s / sqrt(n), where
    the paired t test (two-sided, 5 %) has a power of 80 %: P(T > t) = 0.8 for the noncentral
    t of n - 1 degrees of freedom and noncentrality c. It is NaN for n below 2.
    """
    from scipy import special

    if seeds < 2:
        return math.nan
    limit = special.stdtrit(seeds - 1, (1 + LEVEL) / 2)
    shift = float(special.nctdtrinc(seeds - 1, 1 - POWER, limit))
    return shift * std / math.sqrt(seeds)


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

    def __repr__(self) -> str:
        return (
            f"MethodStatistics of '{self.manifest.name}': {len(self.methods)} methods over "
            f"{len(self.ranks)} settings"
        )

    @cached_property
    def layout(self) -> Layout:
        """The layout of the axes, which names that of the methods."""
        return Layout.of(self.manifest)

    @cached_property
    def sign(self) -> int:
        """The value of a score is `sign * score`."""
        return self.manifest.sign

    @cached_property
    def rows(self) -> pd.DataFrame:
        """A row for each replicate, with its `method`, `setting`, `unit` and `score`.

        The unit is its seed, or its partition where all runs have several. The score is
        minus infinity, worse than all others, if the replicate diverged, or never reached
        the value that a statistic such as `rounds_to_50` names.
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
        own = [labels[run_id] for run_id in rows["run_id"]]
        rows["method"] = [self.layout.method_name(label.get(method)) for label in own]
        rows["setting"] = [labels_text(label, others) for label in own]
        counts = rows.groupby("setting")["method"].transform("nunique")
        rows = rows[counts == rows["method"].nunique()]
        rows = rows.assign(unit=units_of(rows))
        # Every order of the runs gives the same numbers.
        return rows.sort_values(["setting", "method", "replicate"], ignore_index=True)

    @cached_property
    def means(self) -> pd.DataFrame:
        """The mean score of each setting (rows) and method, where equal ones are equal."""
        return self._means_of(["setting"])

    @cached_property
    def ranks(self) -> pd.DataFrame:
        """The rank of each method in each setting: 1 is best, and equal ones share theirs."""
        ranks = self.means.rank(axis=1, ascending=False)
        return ranks[ranks.mean().sort_values(kind="stable").index]

    @property
    def methods(self) -> list[str]:
        """The methods, that with the best mean rank first."""
        return list(self.ranks.columns)

    @property
    def is_told(self) -> bool:
        """Whether a report has a section on them: it compares methods in several settings."""
        several = 2 <= len(self.methods) <= MOST_METHODS and len(self.ranks) > 1
        return several and self.manifest.goal is None

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The score of each setting and unit (rows) and method; NaN where it has none."""
        return self._means_of(["setting", "unit"]).reindex(columns=self.methods)

    def _means_of(self, rows: list[str]) -> pd.DataFrame:
        """Return mean scores with twelve digits, by some columns and the method."""
        means = self.rows.groupby([*rows, "method"])["score"].mean()
        return means.map("{:.12g}".format).astype(float).unstack("method")

    @cached_property
    def interquartile_means(self) -> pd.DataFrame:
        """The interquartile mean of each method's scores; infinite if over a quarter diverged."""
        lost = (self.rows["score"] == -math.inf).groupby(self.rows["method"])
        rows = []
        for method, rank in self.ranks.mean().items():
            iqm, *ends = bootstrap(*self._samples(self.scores[method]))
            low, high = sorted(self.sign * end for end in ends)
            rows.append((method, rank, self.sign * iqm, low, high))
        found = pd.DataFrame(rows, columns=["method", "rank", "iqm", "low", "high"])
        return found.join(lost.agg(replicates="size", diverged="sum"), on="method")

    def _samples(self, values: "pd.Series[float]") -> tuple[list[Floats], bool]:
        """Return values by `setting` and `unit` as those of each setting.

        The second value says whether the k-th ones of all settings are one draw.
        """
        # A partition is drawn with all of its settings, so it has to be in all of them.
        whole = values.unstack("unit").dropna(axis=1)
        together = units_of(self.rows).name == "partition" and whole.shape[1] > 1
        there = whole.stack() if together else values.dropna()
        groups = there.groupby(level="setting")
        return [np.asarray(own, float) for _, own in groups], together

    @cached_property
    def profiles(self) -> pd.DataFrame:
        """Which fraction of the scores of a method is better than `tau`."""
        own = self.scores
        values = own.to_numpy()
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        taus = np.linspace(low, high, 101)
        count = own.notna().sum()
        better = {self.sign * t: (values > t).sum(axis=0) / count for t in taus}
        found = pd.DataFrame(better, index=own.columns).rename_axis(columns="tau")
        return pd.DataFrame(found.stack(), columns=["fraction"]).reset_index()

    @cached_property
    def improvement(self) -> pd.DataFrame:
        """How probably a method is better than the baseline and than the second best one.

        Scores of equal setting and seed are compared, and equal ones count a half. `least`
        is the `least_difference` in one setting, from differences within settings.
        """
        rows = []
        # The baseline may have no score yet.
        known = [self.layout.baseline, *self.layout.methods]
        names = map(self.layout.method_name, known)
        baseline = next((name for name in names if name in self.methods), "")
        for over in dict.fromkeys([baseline, *self.methods[1:2]]):
            for method in self.methods:
                both = self.scores[[method, over]].dropna()
                if method == over or both.empty:
                    continue
                gaps = both[method] - both[over]
                own = gaps.where(np.isfinite(gaps)).groupby(level="setting")
                wins = both[method].gt(both[over]) + 0.5 * both[method].eq(both[over])
                found = proportion(*self._samples(wins))
                # Pairs of which one diverged have no difference.
                seeds = int(own.count().min())
                std = math.sqrt(own.var().mean())
                least = least_difference(std, seeds)
                rows.append((method, over, len(both), *found, seeds, std, least))
        columns = ["method", "over", "pairs", "probability", "low", "high"]
        return pd.DataFrame(rows, columns=[*columns, "seeds", "std", "least"])

    @cached_property
    def seed_by_seed(self) -> pd.DataFrame:
        """Each method minus the baseline, in each setting, with p and 95 % interval of pairs."""
        return paired(self.runs, self.manifest, self.layout)

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

        finite = self.means.to_numpy()[np.isfinite(self.means)]
        far = finite.min() - 2 * np.ptp(finite) - 1 if finite.size else 0.0
        means = self.means.replace(-math.inf, far)
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
        own = self.methods
        last = {
            i: j
            for i, j in itertools.combinations(range(len(own) + 1), 2)
            if apart.isdisjoint(itertools.combinations(own[i:j], 2))
        }
        return [own[i:j] for i, j in last.items() if j > max(i + 1, last.get(i - 1, 0))]

    @cached_property
    def rates(self) -> pd.DataFrame:
        """The best learning rate of each method, and which are within its standard error.

        Means over the other labels are compared, where they have all rates. Rates at which
        a replicate diverged are never near the best. There are no rows if no axis is a rate.
        """
        rows = []
        for axis in filter(RATE_AXIS.fullmatch, sorted(self.layout.varying)):
            if not all(isinstance(v, int | float) for v in self.layout.values[axis]):
                continue
            entries = aggregate(self.runs, self.manifest).assign(all="all")
            mean = self.sign * entries[f"mean.{self.manifest.table.statistic}"]
            entries["score"] = mean.mask(entries["diverged"] > 0, -math.inf)
            method = self.layout.method
            by = "all" if method == axis else f"label.{method}"
            index = dict.fromkeys([by, *(f"label.{a}" for a in self.layout.axes)])
            wide = entries.set_index([*index])[["score", "error"]]
            scores = pd.DataFrame(wide["score"].unstack(f"label.{axis}")).dropna()
            errors = pd.DataFrame(wide["error"].unstack(f"label.{axis}"))
            for label, own in scores.groupby(level=by, sort=False):
                score = own.mean()
                if np.isfinite(score.max()):
                    best: Any = score.idxmax()
                    squares = errors.loc[own.index, best] ** 2
                    error = math.sqrt(squares.sum(skipna=False)) / len(own)
                    far = score < score[best] - np.nan_to_num(error)
                    span = score.index[~far & (far.cumsum() == far.cumsum()[best])]
                    found = (best, self.sign * score[best], error, span[0], span[-1])
                    rows.append(
                        (axis, label_text(cast(Label, label)), len(score), *found)
                    )
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
        is_fraction = known is not None and known.is_fraction
        best = scale * (self.sign > 0) if is_fraction else self.rows["score"].max()
        error = best - self.rows["score"]
        error = error.mask(np.isinf(error), error[np.isfinite(error)].max())
        sizes = self.rows.groupby("run_id")["seed"].transform("size")
        found = self.rows[["method", "setting", "seed"]].assign(
            metric_error=error / scale, time_train_s=self.rows["seconds"] / sizes
        )
        return found.rename(columns={"setting": "task"})
