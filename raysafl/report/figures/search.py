"""A search: the lines of its best runs, and each run over its value on each axis."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.analysis.layout import words_of
from raysafl.report.figures.lines import Quantity, draw_curve, scale_axes
from raysafl.report.figures.methods import name_below
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    LINES,
    ON_SCREEN,
    Look,
    Style,
    entitle,
    first_ones,
    fitted,
    label_of_numbers,
    literal,
    looks,
    turn_labels,
)
from raysafl.report.wording import scale_text
from raysafl.storage.manifest import Label, label_text

# Largest number of lines that are named.
NAMED = 5
# Numbers whose largest is at least so many times the smallest stand on a logarithmic axis.
DECADES = 50
# Largest number of letters of a word at an axis.
LETTERS = 20
ALL_RUNS = Look("#BBBBBB", mark=".")


def lines_of_search(
    study: Study,
    of_run: Mapping[str, pd.DataFrame],
    what: Quantity,
    notes: Sequence[str],
    style: Style,
) -> Figure:
    """Draw the lines of all runs of a search in grey, but for the best ones, which are named.

    The vertical axis follows the better half of the runs, after the first fifth of the
    rounds.

    Args:
        study: the search.
        of_run: the rows of each run that has some, at least one.
        what: the column that is drawn.
        notes: what is said below the title.
        style: the style of the figure.
    """
    manifest = study.lines.manifest
    # The best run is the first one, and a run that is not ranked is behind the others.
    drawn = [entry for entry in manifest.entries if entry.run_id in of_run]
    winner = study.numbers.winner
    ranked = len(of_run.keys() & winner.ranked) if winner else 0
    best = looks(min(NAMED, ranked))
    figure, (axes,) = style.panels(1, 5.9, 2.8)
    each = [*best, *[ALL_RUNS] * (len(drawn) - len(best))]
    limits = []
    # The best lines lie above the others.
    for i, look in reversed(list(enumerate(each))):
        band, first_mark = (0.0, 0.0) if look is ALL_RUNS else (0.1, i / NAMED)
        rows = of_run[drawn[i].run_id]
        limits.append(draw_curve(axes, rows, look, band, what, first_mark))
    better = max(len(best), -(-ranked // 2))
    scale_axes(axes, limits[-better:])
    axes.set_xlabel(what.over.replace("_", " "))
    axes.set_ylabel(literal(what.label))
    metric = winner.metric if winner else ""
    named = f"named are the best {len(best)} of {len(drawn):,} runs, by {metric}"
    shown = [named if 0 < len(best) < len(drawn) else "", *notes]
    entitle(figure, manifest.title or manifest.name, shown, style)
    varying = study.lines.layout.varying
    names = [words_of({a: e.labels.get(a) for a in varying}) for e in drawn]
    if best:
        name_below(figure, list(zip(names, best, strict=False)), style, is_line=True)
    return figure


def slices(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the table's statistic of each run over its value on each axis, a panel per axis.

    Only searches have this figure, whose runs were drawn.
    """
    numbers = study.numbers
    part = numbers.part
    manifest = part.manifest
    name = f"mean.{manifest.table.statistic}"
    shown = part.entries[np.isfinite(part.entries[name].astype(float))]
    varying = part.layout.varying
    if not manifest.is_drawn or shown.empty or not varying:
        return None
    winner = numbers.winner
    is_best = shown["run_id"] == (winner.run_id if winner else "")
    figure, panels = style.panels(len(varying), 2.5, 2.4, sharey=True)
    for axes, axis in zip(panels, varying, strict=False):
        labels = shown[f"label.{axis}"].tolist()
        places = _place_labels(axes, labels, numbers.layout.values[axis])
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
        scale_text(manifest),
        f"shown are {part.share}" if part.share else "",
        first_ones(len(panels), len(varying), "axes"),
    ]
    entitle(figure, manifest.title or manifest.name, notes, style)
    return figure


def _place_labels(
    axes: Axes, labels: Sequence[Label], values: Sequence[Label]
) -> NDArray[np.float64]:
    """Return where labels stand across a panel, and scale and number its horizontal axis.

    Args:
        axes: the panel.
        labels: the labels of the runs.
        values: all labels of the axis, in the order in which words stand side by side.
    """
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        places = np.array(labels, float)
        if places.min() > 0 and places.max() >= DECADES * places.min():
            axes.set_xscale("log")
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        return places
    texts = [label_text(value) for value in values]
    short = [t if len(t) <= LETTERS else f"{t[: LETTERS - 3]}..." for t in texts]
    axes.set_xticks(range(len(short)), list(map(literal, short)))
    turn_labels(axes)
    axes.margins(x=0.15)
    return np.array([values.index(label) for label in labels], float)
