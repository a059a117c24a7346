"""How the methods of a sweep compare over all of its settings (docs/results.md)."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from raysafl.report.analysis.entries import factor, units_of
from raysafl.report.analysis.evidence import LEVEL, Floats, paired
from raysafl.report.analysis.layout import Layout, labels_text
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import UNTIL

# The interval of an interquartile mean needs so many scores of each setting; `FEW` are enough
# in `FEW` settings whose scores are independent.
ENOUGH = 5
FEW = 3
# Largest number of methods that a report compares.
MOST_METHODS = 48


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
        worst |= score.isna() & name.startswith(UNTIL)
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
    def are_compared(self) -> bool:
        """Whether methods are compared with each other, and no run is chosen from all."""
        return len(self.methods) > 1 and not self.manifest.goal

    @property
    def is_told(self) -> bool:
        """Whether a report has a section on them: it compares methods in several settings."""
        is_readable = len(self.methods) <= MOST_METHODS
        return self.are_compared and is_readable and len(self.ranks) > 1

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
        rows = []
        for method, rank in self.ranks.mean().items():
            iqm, *ends = bootstrap(*self._samples(self.scores[method]))
            low, high = sorted(self.sign * end for end in ends)
            score = self.rows.loc[self.rows["method"] == method, "score"]
            rows.append(
                {
                    "method": method,
                    "rank": rank,
                    "iqm": self.sign * iqm,
                    "low": low,
                    "high": high,
                    "replicates": len(score),
                    "diverged": int((score == -math.inf).sum()),
                }
            )
        return pd.DataFrame(rows)

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
    def improvement(self) -> pd.DataFrame:
        """How probably a method is better than the baseline and than the second best one.

        Scores of equal setting and seed are compared, and equal ones count a half.
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
                wins = both[method].gt(both[over]) + 0.5 * both[method].eq(both[over])
                probability, low, high = proportion(*self._samples(wins))
                rows.append(
                    {
                        "method": method,
                        "over": over,
                        "pairs": len(both),
                        "probability": probability,
                        "low": low,
                        "high": high,
                    }
                )
        columns = ["method", "over", "pairs", "probability", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    @property
    def pairs_of(self) -> str:
        """What is compared in pairs: `seeds`, or `partitions` where all runs have several."""
        done = self.runs[self.runs["status"] == Status.FINISHED]
        return f"{units_of(done).name}s"

    @cached_property
    def seed_by_seed(self) -> pd.DataFrame:
        """Each method minus the baseline, in each setting, with p and 95 % interval of pairs."""
        return paired(self.runs, self.manifest, self.layout)
