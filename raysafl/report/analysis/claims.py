"""What a paper says in words, and whether the runs bear it out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysafl.core.text import nearest
from raysafl.storage.manifest import Claim, Label, Manifest

UNKNOWN = "not yet known"


@dataclass(frozen=True)
class Judged:
    """A claim, at how many of the places that can be looked at it holds, and by how much."""

    claim: Claim
    held: int
    places: int  # with all their numbers
    unknown: int  # with some number missing
    effect: float  # mean over places, in the unit of the table

    @property
    def verdict(self) -> str:
        """`holds`, `does not hold`, `holds at 2 of 3 places` or `not yet known`."""
        if not self.places:
            return UNKNOWN
        if self.held == self.places:
            return "holds"
        return f"holds at {self.held} of {self.places} places" if self.held else "does not hold"


def judge(claim: Claim, cells: pd.DataFrame, manifest: Manifest) -> Judged:
    """Look at a claim in the means of the cells; spread and significance are not looked at.

    Args:
        cells: from `raysafl.report.analysis.cells.aggregate` with this manifest.

    `effect` is, for an order, the mean over places of first minus last; for `within`, of the
    largest difference; for bounds, of the statistic itself.

    Raises:
        ValueError: the claim speaks of an axis that the sweep does not have.
    """
    for axis in {*claim.where, *(axis for labels in claim.order for axis in labels)}:
        if axis not in manifest.axes:
            raise ValueError(
                f"the claim '{claim.text}' has an unknown axis '{axis}': "
                f"{nearest(axis, manifest.axes)}"
            )
    values = cells[_bears(cells, claim.where)].assign(
        value=lambda frame: frame[f"mean.{claim.statistic or manifest.table.statistic}"]
    )
    found = _ordered(claim, values, manifest) if claim.order else _bounded(claim, values)
    known = [(good, effect) for good, effect in found if not math.isnan(effect)]
    return Judged(
        claim,
        sum(good for good, _ in known),
        len(known),
        len(found) - len(known),
        float(np.mean([effect for _, effect in known])) if known else math.nan,
    )


def _bears(cells: pd.DataFrame, labels: Mapping[str, Label]) -> "pd.Series[bool]":
    found = pd.Series(True, index=cells.index)
    for axis, value in labels.items():
        found &= cells[f"label.{axis}"].map(lambda own, value=value: own == value).astype(bool)
    return found


def _ordered(claim: Claim, cells: pd.DataFrame, manifest: Manifest) -> list[tuple[bool, float]]:
    """Whether the order is kept at each place that has all its cells, and by how much."""
    named = {axis for labels in claim.order for axis in labels}
    others = [f"label.{axis}" for axis in manifest.axes if axis not in named]
    found = []
    for _, place in cells.groupby(others, sort=False) if others else [((), cells)]:
        rows = [place[_bears(place, labels)]["value"] for labels in claim.order]
        if any(row.empty for row in rows):
            continue
        mean = np.array([row.mean(skipna=False) for row in rows])
        if claim.within is not None:
            gap = float(mean.max() - mean.min())
            found.append((gap <= claim.within, gap))
        else:
            good = bool((mean[:-1] - mean[1:] > claim.margin).all())
            found.append(
                (good, float(mean[0] - mean[-1]) if not np.isnan(mean).any() else math.nan)
            )
    return found


def _bounded(claim: Claim, cells: pd.DataFrame) -> list[tuple[bool, float]]:
    low = -math.inf if claim.least is None else claim.least
    high = math.inf if claim.most is None else claim.most
    return [(low <= value <= high, value) for value in cells["value"].astype(float)]


def rows(cells: pd.DataFrame, manifest: Manifest) -> list[list[str]]:
    """The claims as a table's rows, its head first: sentence, statistic, verdict, mean effect."""
    out = [["the paper says", "looked at", "verdict", "mean difference or value"]]
    for claim in manifest.claims:
        judged = judge(claim, cells, manifest)
        unknown = f", {judged.unknown} not run yet" if judged.places and judged.unknown else ""
        effect = "" if math.isnan(judged.effect) else f"{judged.effect:+.4g}"
        statistic = claim.statistic or manifest.table.statistic
        out.append([claim.text, f"`{statistic}`", judged.verdict + unknown, effect])
    return out
