"""How far a sweep's results are from what a paper prints, and whether they contradict it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from experiments.papercheck.comparison import Claim, Comparison, Printed
from raysafl.core.text import nearest
from raysafl.report.analysis.entries import (
    LEARNT,
    aggregate,
    factor,
    nested,
    partitions_of,
    statistics,
)
from raysafl.report.analysis.evidence import baselines, estimated, t_quantile
from raysafl.report.analysis.layout import Layout, labels_text
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import METHOD_AXES, Label, Manifest, label_text
from raysafl.storage.statistics import ACCURACIES, STATISTICS

EVERYWHERE = "all entries"
UNKNOWN = "unknown"
NOT_LEARNT = "not learnt"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Compared:
    """The entries of a sweep beside the printed numbers.

    Attributes:
        comparison: what the paper prints.
        runs: rows as in `runs.parquet`; where the paper prints improvements over a
            baseline, those of the replicates.
        manifest: the sweep, without the baseline's own entries where there is one.
        entries: the columns of `raysafl.report.analysis.evidence.estimated`, also of the
            statistics that printed numbers and claims name, and in the table's unit
            `paper.mean` and `paper.std` (NaN where the paper prints no number),
            `diff.<statistic>` (ours minus the paper's), `half.diff`, `z` and `verdict`
            as `page.rule` explains, and `below` (the share of our partitions with a lower
            mean than the paper's).
        paper: the printed numbers of the table's statistic.
        more: those of other statistics.
    """

    comparison: Comparison
    runs: pd.DataFrame
    manifest: Manifest
    entries: pd.DataFrame
    paper: list[Printed]
    more: list[Printed]

    @classmethod
    def of(
        cls,
        comparison: Comparison,
        runs: pd.DataFrame,
        manifest: Manifest,
        statistic: str = "",
    ) -> "Compared":
        """Lay the results of a sweep beside what a paper prints of it.

        Args:
            comparison: what the paper prints.
            runs: rows as in `runs.parquet`, with `comparison.statistics`.
            manifest: the sweep.
            statistic: what is compared; by default the table's statistic.
        """
        table = manifest.table
        table = table.replace(also=list(dict.fromkeys([*table.also, *comparison.more])))
        manifest = manifest.replace(table=table)
        paper, more = comparison.printed(manifest), comparison.further(manifest)
        if comparison.minus:
            own, manifest = improvements(runs, manifest, comparison.minus)
        else:
            own = runs
        if statistic:
            table = table.replace(statistic=statistic)
            manifest = manifest.replace(table=table)
        named = [*table.also, *comparison.statistics]
        every = table.replace(also=list(dict.fromkeys(named)))
        entries = estimated(own, manifest.replace(table=every))
        if own is not runs:
            # Whether a run has learnt is seen from its accuracy, not from its improvement.
            level = aggregate(runs.loc[own.index], manifest.replace(table=every))
            entries["above_chance"] = level["above_chance"]
        bare = cls(comparison, own, manifest, entries, paper, more)
        return cls(comparison, own, manifest, _judged(bare), paper, more)

    @property
    def name(self) -> str:
        """The statistic that is compared."""
        return self.manifest.table.statistic

    @property
    def unplaced(self) -> list[Printed]:
        """The printed numbers for which the sweep has no entry."""
        entries = self.manifest.entries
        return [p for p in self.paper if not any(p.is_of(e.labels) for e in entries)]


def improvements(
    runs: pd.DataFrame, manifest: Manifest, minus: Mapping[str, Label]
) -> tuple[pd.DataFrame, Manifest]:
    """Replace the runs of a sweep by their improvements over a baseline.

    Each statistic of a replicate becomes its difference to the same replicate of the
    baseline: the entry with the same labels but those of `minus`. Both have the same
    seed, and so the same cohorts. The baseline's own entries are left out. A replicate
    whose baseline has not finished is left out as well, and so counts as missing.

    Returns:
        The runs and the manifest without the baseline's entries.
    """
    found = zip(manifest.entries, baselines(manifest, minus), strict=True)
    base = {entry.run_id: run_id for entry, run_id in found if run_id}
    entries = [entry for entry in manifest.entries if entry.run_id in base]
    manifest = manifest.replace(entries=entries)
    names = [
        n for n in {*manifest.known(runs), *statistics(manifest.table)} if n in runs
    ]
    own = runs[runs["run_id"].isin(list(base))]
    if own.empty or not names:
        return own, manifest
    done = runs[runs["status"] == Status.FINISHED].set_index(["run_id", "replicate"])[
        names
    ]
    pairs = pd.MultiIndex.from_arrays([own["run_id"].map(base), own["replicate"]])
    there = pairs.isin(done.index) | (own["status"] != Status.FINISHED).to_numpy()
    own = own[there].copy()
    own[names] = own[names].astype(float) - done.reindex(pairs[there]).to_numpy(float)
    return own, manifest


def _judged(found: Compared) -> pd.DataFrame:
    """Return the entries with the printed numbers, and how these are judged."""
    manifest = found.manifest
    # The first printed number whose labels an entry has is the entry's.
    printed = [
        next((p for p in found.paper if p.is_of(entry.labels)), None)
        for entry in manifest.entries
    ]
    entries = found.entries.copy()
    # None is NaN among floats.
    entries["paper.mean"] = np.array([p and p.mean for p in printed], float)
    entries["paper.std"] = np.array([p and p.std for p in printed], float)
    for name in statistics(manifest.table):
        alike = name == found.name or _is_alike(name, manifest)
        entries[f"diff.{name}"] = (
            entries[f"mean.{name}"] - entries["paper.mean"] if alike else math.nan
        )
    diff = entries[f"diff.{found.name}"]
    spread = entries.rename(columns={f"std.{found.name}": "std"})
    half, z = _place_among(spread, diff, found.comparison.seeds)
    cases = [(diff + half).isna(), diff.abs() <= half]
    verdict = np.select(cases, ["", "inside"], "outside")
    entries = entries.assign(**{"half.diff": half, "z": z, "verdict": verdict})
    means = _replicates(found).groupby(level="partition").mean()
    numbers = entries["paper.mean"].to_numpy(float)
    lower = means.reindex(columns=entries["run_id"]).to_numpy() < numbers
    several = (entries["partitions"] > 1) & entries["z"].notna()
    entries["below"] = (lower.sum(axis=0) / entries["partitions"]).where(several)
    return entries


def _is_alike(name: str, manifest: Manifest) -> bool:
    """Whether printed numbers of the table's statistic may be those of another one.

    Printed accuracies are not compared with counts and times.
    """
    own = manifest.statistic(name)
    of_table = manifest.statistic(manifest.table.statistic)
    if of_table is None or manifest.table.statistic in STATISTICS:
        return name in ACCURACIES
    return own is not None and own.column == of_table.column


def _place_among(
    found: pd.DataFrame, diff: "pd.Series[float]", seeds: int
) -> tuple[Floats, Floats]:
    """Return the half width of the prediction interval of differences, and their z.

    Args:
        found: from `nested`, in the table's unit.
        diff: ours minus the paper's.
        seeds: how many seeds a printed number is the mean of.
    """
    within = found["within"].fillna(0)
    # Without `within`, `std` cannot be divided; without `between`, it is `within`.
    between = found["between"].fillna(found["std"].where(found["within"].isna(), 0))
    variance = between**2 + within**2 / seeds + found["error"] ** 2
    deviation = np.sqrt(variance.to_numpy(float))
    with np.errstate(divide="ignore", invalid="ignore"):
        z = diff.to_numpy(float) / deviation
    return deviation * t_quantile(found["freedom"].to_numpy(float)), z


def _replicates(found: Compared) -> pd.DataFrame:
    """Return the compared statistic of the finished replicates, in the table's unit.

    Returns:
        A column for each run with a printed number, by its id, and a row for each pair
        `partition`, `replicate`.
    """
    name, runs = found.name, found.runs
    ids = [
        entry.run_id
        for entry in found.manifest.entries
        if any(p.is_of(entry.labels) for p in found.paper)
    ]
    if runs.empty or name not in runs:
        runs = pd.DataFrame(columns=["run_id", "status", "replicate", name])
    done = runs[(runs["status"] == Status.FINISHED) & runs["run_id"].isin(ids)]
    values = done[name].astype(float) * factor(found.manifest, name)
    done = done.assign(partition=partitions_of(done), value=values)
    return done.pivot(
        index=["partition", "replicate"], columns="run_id", values="value"
    )


class Distance(NamedTuple):
    """How far a table is from the paper's, beside how much the paper's numbers spread.

    Args:
        entries: the number of entries with a printed number and one of ours.
        difference: the mean of their absolute differences, in the table's unit; NaN
            without entries.
        printed_std: the mean of the standard deviations that are printed for them; NaN
            without any.
    """

    entries: int
    difference: float
    printed_std: float


def distance(found: Compared) -> Distance:
    """Return the distance of a table to the paper's."""
    gaps = found.entries[f"diff.{found.name}"].abs().dropna()
    printed = found.entries.loc[gaps.index, "paper.std"]
    return Distance(len(gaps), float(gaps.mean()), float(printed.mean()))


def bias(found: Compared) -> pd.DataFrame:
    """Judge the mean signed difference to the paper of groups of entries.

    Replicates of one number have one partition and one seed in all entries. So the mean
    over the entries of a group is a result of its own, which is judged as that of an entry
    is: the entries' dependence is in its spread.

    Returns:
        Rows `group` ("all entries" or "<axis> = <value>"), `entries`, `lower` (how many of
        them are lower than the paper's), `diff` (the mean of ours minus the paper's),
        `half` and `z`; NaN where no replicate has all entries of the group.
    """
    entries = found.entries
    both = entries[entries[f"diff.{found.name}"].notna()]
    if both.empty:
        return pd.DataFrame()
    wide = _replicates(found)
    rows = []
    for group, own in groups_of(both, found.manifest.axes).items():
        diff = own[f"diff.{found.name}"]
        means = wide[list(own["run_id"])].dropna().mean(axis=1)
        each = means.rename("value").reset_index().assign(group=group)
        spread = nested(each["value"], each["group"], each["partition"])
        half, z = _place_among(
            spread.reindex([group]),
            pd.Series({group: diff.mean()}),
            found.comparison.seeds,
        )
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


def groups_of(entries: pd.DataFrame, axes: Iterable[str]) -> dict[str, pd.DataFrame]:
    """Return all entries, and those of each label of axes that have several, by name."""
    groups = {EVERYWHERE: entries}
    for axis in axes:
        some = entries.groupby(f"label.{axis}", sort=False, dropna=False)
        for _, own in some if len(some) > 1 else []:
            # The label None is NaN in the key of a group.
            groups[labels_text({axis: own[f"label.{axis}"].iloc[0]}, [axis])] = own
    return groups


def matching(found: Compared) -> pd.DataFrame:
    """Find the statistic that matches the printed numbers best, over all entries and per method.

    The distance of a statistic is the mean of its absolute differences. Distances are
    comparable only over equally many entries, so `best` is the least distance among the
    statistics that most entries have; ties go to the first.

    Returns:
        Rows `group` ("all entries" or "<axis> = <value>"), `statistic`, `entries`,
        `distance` (in the table's unit) and `best`; none where nothing can be compared.
    """
    method = Layout.of(found.manifest).method
    axes = [method] if method and found.paper else []
    rows: list[dict[str, Any]] = []
    for group, entries in groups_of(found.entries, axes).items():
        distances = _distances(entries, found.manifest)
        best = min(distances, key=_rank_of_statistic, default=None)
        rows += [{"group": group, **row, "best": row is best} for row in distances]
    return pd.DataFrame(
        rows, columns=["group", "statistic", "entries", "distance", "best"]
    )


def readings(found: Compared) -> pd.DataFrame:
    """Return how far each reading of the paper is from its printed numbers, nearest first.

    A reading is a combination of labels on the axes of `Comparison.readings`. If there is
    an axis for the method, each method has a row of its own, because a baseline may not
    depend on some reading.

    Returns:
        Rows `method` (empty if there is no such axis), `reading`, `entries`, `statistic`
        (that with the least distance over most entries), `distance` and
        `distance.<statistic>`.
    """
    manifest = found.manifest
    method = next((a for a in METHOD_AXES if a in manifest.axes), None)
    axes = [*([method] if method else []), *found.comparison.readings]
    if not found.comparison.readings:
        return pd.DataFrame()
    rows: list[dict[str, Any]] = []
    for _, entries in found.entries.groupby(
        [f"label.{axis}" for axis in axes], sort=False, dropna=False
    ):
        # The label None is NaN in the key of a group.
        labels = {axis: entries[f"label.{axis}"].iloc[0] for axis in axes}
        distances = _distances(entries, manifest)
        if distances:
            best = min(distances, key=_rank_of_statistic)
            each = {
                f"distance.{row['statistic']}": row["distance"] for row in distances
            }
            who = "" if method is None else label_text(labels.pop(method))
            reading = labels_text(labels, list(labels))
            rows.append({"method": who, "reading": reading, **best, **each})
    frame = pd.DataFrame(rows)
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


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and how often it holds.

    A claim is looked at once for each combination of the labels that it does not speak
    of.

    Attributes:
        claim: the claim.
        held: the number of combinations at which it holds.
        places: the number of combinations at which it is judged: they have all their
            numbers, and all their entries have learnt.
        unknown: the number of combinations with a number missing.
        effect: its mean effect over the places, in the unit of the table.
        not_learnt: the number of combinations that have all their numbers, but of which
            an entry has not learnt.
    """

    claim: Claim
    held: int
    places: int
    unknown: int
    effect: float
    not_learnt: int = 0

    @property
    def verdict(self) -> str:
        """Return whether the claim holds.

        It is `holds`, `does not hold`, `holds at 2 of 3 places`, `not learnt` (if it
        cannot be judged at any place because entries have not learnt) or `unknown`.
        """
        if not self.places:
            return NOT_LEARNT if self.not_learnt else UNKNOWN
        if self.held == self.places:
            return "holds"
        return (
            f"holds at {self.held} of {self.places} places"
            if self.held
            else "does not hold"
        )


def check_claim(claim: Claim, found: Compared) -> CheckedClaim:
    """Check a claim against the means of the entries, without regard to their spread.

    The effect is, for an order, the mean of first minus last; for `within`, the mean of
    the largest difference; for bounds, the mean of the statistic itself.

    Differences between entries at chance level say nothing about methods. So a claim is
    judged only where every entry that it compares has learnt, that is where
    `above_chance` is at least `LEARNT`, whatever the claim's statistic is. Entries of
    which the number of classes is not known are taken to have learnt.

    Raises:
        ValueError: the claim speaks of an axis that the sweep does not have.
    """
    manifest, entries = found.manifest, found.entries
    for axis in {*claim.where, *(axis for labels in claim.order for axis in labels)}:
        if axis not in manifest.axes:
            raise ValueError(
                f"the claim '{claim.text}' has an unknown axis '{axis}': "
                f"{nearest(axis, manifest.axes)}"
            )
    values = entries[_have_labels(entries, claim.where)].assign(
        value=lambda frame: frame[f"mean.{claim.statistic or found.name}"]
    )
    places = (
        _ordered(claim, values, manifest) if claim.order else _bounded(claim, values)
    )
    # Combinations with a missing number, or that have not learnt, are counted apart.
    known = [place for place in places if not math.isnan(place.effect)]
    judged = [place for place in known if place.learnt]
    return CheckedClaim(
        claim=claim,
        held=sum(place.good for place in judged),
        places=len(judged),
        unknown=len(places) - len(known),
        effect=float(np.mean([p.effect for p in judged])) if judged else math.nan,
        not_learnt=len(known) - len(judged),
    )


class _Place(NamedTuple):
    """Whether a claim holds for one combination of labels, and its effect there."""

    good: bool
    effect: float
    learnt: bool


def _have_labels(
    entries: pd.DataFrame, labels: Mapping[str, Label]
) -> "pd.Series[bool]":
    """Return which entries have all of these labels."""
    found = pd.Series(True, index=entries.index)
    for axis, value in labels.items():
        found &= np.array([own == value for own in entries[f"label.{axis}"]], bool)
    return found


def _ordered(claim: Claim, entries: pd.DataFrame, manifest: Manifest) -> list[_Place]:
    """Return whether the order holds for each combination of other labels, and its effect."""
    named = {axis for labels in claim.order for axis in labels}
    others = [f"label.{axis}" for axis in manifest.axes if axis not in named]
    found = []
    groups = entries.groupby(others, sort=False, dropna=False) if others else None
    for _, place in [((), entries)] if groups is None else groups:
        parts = [place[_have_labels(place, labels)] for labels in claim.order]
        # A combination without one of the entries cannot confirm or refute the order.
        if any(part.empty for part in parts):
            continue
        mean = np.array([part["value"].mean(skipna=False) for part in parts])
        learnt = not any((part["above_chance"] < LEARNT).any() for part in parts)
        if claim.within is not None:
            gap = float(mean.max() - mean.min())
            found.append(_Place(gap <= claim.within, gap, learnt))
        else:
            good = bool((mean[:-1] - mean[1:] > claim.margin).all())
            missing = bool(np.isnan(mean).any())
            effect = math.nan if missing else float(mean[0] - mean[-1])
            found.append(_Place(good, effect, learnt))
    return found


def _bounded(claim: Claim, entries: pd.DataFrame) -> list[_Place]:
    """Return for each entry whether it lies within the bounds, and its value."""
    low = -math.inf if claim.least is None else claim.least
    high = math.inf if claim.most is None else claim.most
    values = entries["value"].astype(float)
    learnt = ~(entries["above_chance"] < LEARNT)
    return [
        _Place(low <= value <= high, value, bool(known))
        for value, known in zip(values, learnt, strict=True)
    ]
