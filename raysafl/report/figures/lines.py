"""One line over the rounds: the mean of a column over replicates, and a band around it.

The column is the test accuracy, or another one by which the runs are judged.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from raysafl.report.figures.style import (
    GREY,
    ON_SCREEN,
    Look,
    literal,
    looks,
    new_figure,
    style_axes,
    to_png,
    wrapped,
)
from raysafl.report.wording import quality_text
from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import declaration_of

# Marks on each line, and the share of the first rounds that the vertical axis may cut off.
MARKS_OF_LINE = 4
CLIMB = 0.2
ROUND = "round"


@dataclass(frozen=True)
class Quantity:
    """A column of `rounds/` that is drawn over the rounds.

    Attributes:
        column: the name of the column.
        scale: the factor by which its values are multiplied.
        highest: the upper limit of the band around the mean.
        label: the text at the vertical axis.
        empty: what is said of a panel without rows.
        lowest: the lower limit of the band.
    """

    column: str
    scale: float
    highest: float
    label: str
    empty: str = "not run yet"
    lowest: float = 0.0

    @classmethod
    def judging(cls, manifest: Manifest) -> "Quantity":
        """Return the quantity by which the runs of a sweep are judged."""
        column = declaration_of(manifest.quality, manifest.columns)
        if column is not None and column.is_fraction:
            return cls(manifest.quality, 100, 100, f"{quality_text(manifest)} (%)")
        text = quality_text(manifest)
        return cls(manifest.quality, 1, math.inf, text, lowest=-math.inf)


ACCURACY = Quantity("test_accuracy", 100, 100, "test accuracy (%)")
ENFORCED = Quantity(
    "enforce_prob", 1, 1, "probability of an enforced round", "the same in all rounds"
)


def draw_curve(
    axes: Axes,
    rounds: pd.DataFrame,
    look: Look,
    band: float = 0.2,
    what: Quantity = ACCURACY,
    first_mark: float | None = None,
) -> tuple[float, float]:
    """Draw the mean of a run's rows as a line, and one standard deviation as a band around it.

    A replicate that ends before others of the run keeps its last value, as in the table.
    Marks of the line begin at `first_mark`, from 0 to 1 of the way to the second one, so that
    lines do not have theirs at the same rounds; None is a line without marks.

    Returns:
        The lowest and the highest mean after the first fifth of the rounds; infinity and
        minus infinity if there is none.
    """
    known = rounds.dropna(subset=what.column)
    held = known.pivot(index="round", columns="replicate", values=what.column).ffill()
    curve = pd.DataFrame({"mean": held.mean(axis=1), "std": held.std(axis=1)})
    curve *= what.scale
    numbers = curve.index.to_numpy(float)
    mean = curve["mean"].to_numpy(float)
    std = curve["std"].fillna(0.0).to_numpy(float)
    gap = max(1, len(numbers) // MARKS_OF_LINE)
    axes.plot(
        numbers,
        mean,
        color=look.colour,
        linestyle=look.dash,
        linewidth=1.4,
        marker=look.mark if first_mark is not None or len(numbers) == 1 else None,
        markevery=(int((first_mark or 0.0) * gap), gap),
        markersize=4.5,
        markerfacecolor=look.face,
    )
    low = np.maximum(mean - std, what.lowest)
    high = np.minimum(mean + std, what.highest)
    if std.any() and band:
        axes.fill_between(
            numbers, low, high, color=look.colour, alpha=band, linewidth=0
        )
    later = mean[int(CLIMB * len(mean)) :]
    later = later[np.isfinite(later)]
    return float(later.min(initial=math.inf)), float(later.max(initial=-math.inf))


@ON_SCREEN.used()
def curve_of_run(
    rounds: pd.DataFrame, title: str, manifest: Manifest | None = None
) -> bytes:
    """Draw one run: each replicate as a thin line, their mean with a band.

    Args:
        rounds: the run's rows, as in `rounds/`.
        title: the title of the figure.
        manifest: the sweep, which says what is drawn; by default the test accuracy.

    Returns:
        A PNG file.
    """
    what = Quantity.judging(manifest) if manifest else ACCURACY
    seeds = rounds["replicate"].nunique()
    note = f"mean ± std of {seeds} replicates" if seeds > 1 else ""
    title = f"{wrapped(title, 6.0)}\n{note}".strip()
    # A layout would draw the figure twice, which takes twice as long.
    figure = new_figure(6.4, 4.0, layout=None)
    figure.subplots_adjust(0.1, 0.12, 0.98, 0.92 - 0.045 * title.count("\n"))
    axes = figure.subplots()
    style_axes(axes)
    for _, rows in rounds.groupby("replicate") if seeds > 1 else []:
        axes.plot(
            rows["round"],
            what.scale * rows[what.column],
            color=GREY,
            linewidth=0.5,
            alpha=0.5,
        )
    draw_curve(axes, rounds, looks(1)[0], what=what)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True)
    )
    axes.set_xlabel(ROUND)
    axes.set_ylabel(literal(what.label))
    axes.set_title(title)
    return to_png(figure)
