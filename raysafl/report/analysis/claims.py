"""Claims: what a paper says in words, and whether the runs confirm it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysafl.core.text import nearest
from raysafl.storage.manifest import Claim, Label, Manifest

UNKNOWN = "not yet known"


@dataclass(frozen=True)
class CheckedClaim:
    """A claim and how often it holds.

    A claim is looked at once for each combination of the labels that it does not speak
    of.

    Attributes:
        claim: the claim.
        held: the number of combinations at which it holds.
        places: the number of combinations that have all their numbers.
        unknown: the number of combinations with a number missing.
        effect: its mean effect over the combinations, in the unit of the table.
    """

    claim: Claim
    held: int
    places: int
    unknown: int
    effect: float

    @property
    def verdict(self) -> str:
        """Return `holds`, `does not hold`, `holds at 2 of 3 places` or `not yet known`."""
        if not self.places:
            return UNKNOWN
        if self.held == self.places:
            return "holds"
        return (
            f"holds at {self.held} of {self.places} places"
            if self.held
            else "does not hold"
        )


def check_claim(claim: Claim, cells: pd.DataFrame, manifest: Manifest) -> CheckedClaim:
    """Check a claim against the means of the cells, without regard to spread or significance.

    The effect is, for an order, the mean of first minus last; for `within`, the mean of
    the largest difference; for bounds, the mean of the statistic itself.

    Args:
        claim: the claim.
        cells: from `raysafl.report.analysis.cells.aggregate` with this manifest.
        manifest: the sweep.

    Raises:
        ValueError: the claim speaks of an axis that the sweep does not have.
    """
    for axis in {*claim.where, *(axis for labels in claim.order for axis in labels)}:
        if axis not in manifest.axes:
            raise ValueError(
                f"the claim '{claim.text}' has an unknown axis '{axis}': "
                f"{nearest(axis, manifest.axes)}"
            )
    values = cells[_have_labels(cells, claim.where)].assign(
        value=lambda frame: frame[f"mean.{claim.statistic or manifest.table.statistic}"]
    )
    found = (
        _ordered(claim, values, manifest) if claim.order else _bounded(claim, values)
    )
    # Combinations with a missing number are counted apart.
    known = [(good, effect) for good, effect in found if not math.isnan(effect)]
    return CheckedClaim(
        claim,
        sum(good for good, _ in known),
        len(known),
        len(found) - len(known),
        float(np.mean([effect for _, effect in known])) if known else math.nan,
    )


def _have_labels(cells: pd.DataFrame, labels: Mapping[str, Label]) -> "pd.Series[bool]":
    """Return which cells have all of these labels."""
    found = pd.Series(True, index=cells.index)
    for axis, value in labels.items():
        found &= (
            cells[f"label.{axis}"]
            .map(lambda own, value=value: own == value)
            .astype(bool)
        )
    return found


def _ordered(
    claim: Claim, cells: pd.DataFrame, manifest: Manifest
) -> list[tuple[bool, float]]:
    """Return whether the order holds for each combination of other labels, and its effect."""
    named = {axis for labels in claim.order for axis in labels}
    others = [f"label.{axis}" for axis in manifest.axes if axis not in named]
    found = []
    for _, place in cells.groupby(others, sort=False) if others else [((), cells)]:
        rows = [place[_have_labels(place, labels)]["value"] for labels in claim.order]
        # A combination without one of the cells cannot confirm or refute the order.
        if any(row.empty for row in rows):
            continue
        mean = np.array([row.mean(skipna=False) for row in rows])
        if claim.within is not None:
            gap = float(mean.max() - mean.min())
            found.append((gap <= claim.within, gap))
        else:
            good = bool((mean[:-1] - mean[1:] > claim.margin).all())
            found.append(
                (
                    good,
                    float(mean[0] - mean[-1]) if not np.isnan(mean).any() else math.nan,
                )
            )
    return found


def _bounded(claim: Claim, cells: pd.DataFrame) -> list[tuple[bool, float]]:
    """Return for each cell whether it lies within the bounds, and its value."""
    low = -math.inf if claim.least is None else claim.least
    high = math.inf if claim.most is None else claim.most
    return [(low <= value <= high, value) for value in cells["value"].astype(float)]


def rows(cells: pd.DataFrame, manifest: Manifest) -> list[list[str]]:
    """Return the claims as rows of a table, the head first.

    A row has the sentence, the statistic, the verdict and the mean effect.
    """
    out = [["the paper says", "looked at", "verdict", "mean difference or value"]]
    for claim in manifest.claims:
        checked = check_claim(claim, cells, manifest)
        unknown = (
            f", {checked.unknown} not run yet"
            if checked.places and checked.unknown
            else ""
        )
        effect = "" if math.isnan(checked.effect) else f"{checked.effect:+.4g}"
        statistic = claim.statistic or manifest.table.statistic
        out.append([claim.text, f"`{statistic}`", checked.verdict + unknown, effect])
    return out
