"""Claims: what a paper says in words, and whether the runs confirm it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from raysafl.core.text import nearest
from raysafl.report.analysis.entries import LEARNT
from raysafl.storage.manifest import Claim, Label, Manifest

UNKNOWN = "unknown"
NOT_LEARNT = "not learnt"


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


def check_claim(
    claim: Claim, entries: pd.DataFrame, manifest: Manifest
) -> CheckedClaim:
    """Check a claim against the means of the entries, without regard to spread or significance.

    The effect is, for an order, the mean of first minus last; for `within`, the mean of
    the largest difference; for bounds, the mean of the statistic itself.

    Differences between entries at chance level say nothing about methods. So a claim is
    judged only where every entry that it compares has learnt, that is where
    `above_chance` is at least `LEARNT`, whatever the claim's statistic is. Entries of
    which the number of classes is not known are taken to have learnt.

    Args:
        claim: the claim.
        entries: from `raysafl.report.analysis.entries.aggregate` with this manifest.

    Raises:
        ValueError: the claim speaks of an axis that the sweep does not have.
    """
    for axis in {*claim.where, *(axis for labels in claim.order for axis in labels)}:
        if axis not in manifest.axes:
            raise ValueError(
                f"the claim '{claim.text}' has an unknown axis '{axis}': "
                f"{nearest(axis, manifest.axes)}"
            )
    values = entries[_have_labels(entries, claim.where)].assign(
        value=lambda frame: frame[f"mean.{claim.statistic or manifest.table.statistic}"]
    )
    found = (
        _ordered(claim, values, manifest) if claim.order else _bounded(claim, values)
    )
    # Combinations with a missing number, or that have not learnt, are counted apart.
    known = [place for place in found if not math.isnan(place.effect)]
    judged = [place for place in known if place.learnt]
    return CheckedClaim(
        claim=claim,
        held=sum(place.good for place in judged),
        places=len(judged),
        unknown=len(found) - len(known),
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
