"""The methods over all settings: interquartile means, and how often one beats another."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    GREY,
    OKABE_ITO,
    ON_SCREEN,
    Style,
    entitle,
    label_of_numbers,
    style_axes,
    wrapped,
)


def intervals(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the interquartile mean of each method, and its share of wins over the baseline.

    The numbers and their 95 % intervals are those of the table of methods; one that has no
    interval is a mark alone. There is no figure where the report has no such table.
    """
    methods = study.numbers.methods
    if not methods.is_told:
        return None
    means = methods.interquartile_means
    better = methods.improvement
    better = better[better["over"] == better["over"].iloc[:1].squeeze()]
    shares = better.assign(
        **{name: 100 * better[name] for name in ("probability", "low", "high")}
    )
    names = means["method"].tolist()
    height = 0.3 * len(names)
    # Both fit side by side into a column of any paper.
    figure, (left, right) = style.panels(2, 1.0, height, beside=1.6, sharey=True)
    _draw(left, means, "iqm", names)
    left.set_xlabel(f"IQM of {label_of_numbers(methods.manifest.table)}")
    left.set_yticks(range(len(names)), names)
    # The best mean rank stands above.
    left.set_ylim(len(names) - 0.5, -0.5)
    if shares.empty:
        right.set_visible(False)
    else:
        _draw(right, shares, "probability", names)
        right.axvline(50, color=GREY, linewidth=0.8, linestyle="--")
        right.set_xlim(-2, 102)
        baseline = f"better than {shares['over'].iloc[0]} (%)"
        right.set_xlabel(wrapped(baseline, figure.get_figwidth() / 3, style.letters))
    entitle(figure, "", [], style)
    return figure


def _draw(axes: Axes, numbers: pd.DataFrame, column: str, names: list[str]) -> None:
    """Draw a mark for each method, in the row of its name, and a bar from `low` to `high`."""
    style_axes(axes)
    shown = numbers[np.isfinite(numbers[column])]
    rows = [names.index(name) for name in shown["method"]]
    axes.hlines(rows, shown["low"], shown["high"], color=OKABE_ITO[0], linewidth=2)
    axes.plot(shown[column], rows, "o", color=OKABE_ITO[0], markersize=5)
