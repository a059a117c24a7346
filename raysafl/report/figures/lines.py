"""One line over the rounds: the mean of a column over replicates, and a band around it.

The column is the test accuracy, or another one by which the runs are judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from raysafl.report.figures.style import Look
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
        label: the text at the vertical axis.
        scale: the factor by which its values are multiplied.
        over: the column of the horizontal axis.
    """

    column: str
    label: str
    scale: float = 1.0
    over: str = ROUND

    @classmethod
    def judging(cls, manifest: Manifest) -> "Quantity":
        """Return the quantity by which the runs of a sweep are judged."""
        text = quality_text(manifest)
        column = declaration_of(manifest.quality, manifest.columns)
        if column is not None and column.is_fraction:
            return cls(manifest.quality, f"{text} (%)", 100)
        return cls(manifest.quality, text)


ENFORCED = Quantity("enforce_prob", "probability of an enforced round")


def draw_curve(
    axes: Axes,
    rounds: pd.DataFrame,
    look: Look,
    band: float,
    what: Quantity,
    first_mark: float,
) -> tuple[float, float]:
    """Draw the mean of a run's rows as a line, and one standard deviation as a band around it.

    A replicate that ends before others of the run keeps its last value, as in the table; and
    over another column than the rounds, a value is kept until the next one.

    Args:
        axes: the panel.
        rounds: the run's rows that have a value.
        look: how the line looks.
        band: how dark the band is, from 0 (no band) to 1.
        what: the column that is drawn.
        first_mark: where the first mark is, from 0 to 1 of the way to the second one, so
            that lines do not have theirs at the same rounds.

    Returns:
        The lowest and the highest mean after the first fifth of the rounds.
    """
    held = rounds.pivot(index=what.over, columns="replicate", values=what.column)
    held = held.ffill()
    held *= what.scale
    mean = held.mean(axis=1)
    std = held.std(axis=1).fillna(0.0)
    gap = max(1, len(held) // MARKS_OF_LINE)
    axes.plot(
        held.index,
        mean,
        color=look.colour,
        linestyle=look.dash,
        linewidth=1.4,
        marker=look.mark,
        markevery=(int(first_mark * gap), gap),
        markersize=4.5,
        markerfacecolor=look.face,
    )
    if std.any() and band:
        axes.fill_between(
            held.index,
            mean - std,
            mean + std,
            color=look.colour,
            alpha=band,
            linewidth=0,
        )
    later = mean.iloc[int(CLIMB * len(mean)) :]
    return float(later.min()), float(later.max())


def scale_axes(axes: Axes, limits: Sequence[tuple[float, float]]) -> None:
    """Number the rounds, and let the vertical axis reach from the lowest to the highest mean.

    Args:
        axes: a panel that shares its axes with all others.
        limits: what `draw_curve` returned for the lines that are to be seen.
    """
    low = min(low for low, _ in limits)
    high = max(high for _, high in limits)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - margin, high + margin)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
