"""A search: each run over its value on each axis."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    LINES,
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
    fitted,
    label_of_numbers,
)
from raysafl.storage.manifest import Label, label_text

# Numbers whose largest is at least so many times the smallest stand on a logarithmic axis.
DECADES = 50


def slices(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the table's statistic of each run over its value on each axis, a panel per axis.

    Only searches have this figure, whose runs were drawn.
    """
    numbers = study.numbers
    manifest = numbers.shown
    name = f"mean.{manifest.table.statistic}"
    entries = numbers.shown_entries
    shown = entries[np.isfinite(entries[name].astype(float))]
    varying = numbers.layout.varying
    if not manifest.is_drawn or shown.empty or not varying:
        return None
    winner = numbers.winner
    is_best = shown["run_id"] == (winner.run_id if winner else "")
    figure, panels = style.panels(len(varying), 2.5, 2.4, sharey=True)
    for axes, axis in zip(panels, varying, strict=False):
        places = _places_on(axes, shown[f"label.{axis}"].tolist())
        finals = shown[name]
        axes.plot(places[~is_best], finals[~is_best], "o", color=LINES[0], markersize=5)
        axes.plot(places[is_best], finals[is_best], "*", color=LINES[1], markersize=11)
        axes.set_xlabel(fitted(axes, axis))
    figure.supylabel(label_of_numbers(manifest.table))
    meaning = manifest.meaning(manifest.table.statistic) or manifest.table.statistic
    metric = winner.metric if winner else ""
    notes = [
        f"a point is a run, its mean over seeds of the {meaning}",
        f"the star is the best run by {metric}" if is_best.any() else "",
        f"shown are {numbers.share}" if numbers.share else "",
        first_ones(len(panels), len(varying), "axes"),
    ]
    entitle(figure, manifest.title or manifest.name, notes, style)
    return figure


def _places_on(axes: Axes, labels: Sequence[Label]) -> NDArray[Any]:
    """Scale the horizontal axis of a panel to labels, and return where they are on it."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in labels):
        places = np.array(labels, float)
        if places.min() > 0 and places.max() >= DECADES * places.min():
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        return places
    axes.tick_params(axis="x", rotation=40)
    axes.margins(x=0.15)
    # matplotlib puts words side by side.
    return np.array([label_text(value) for value in labels])
