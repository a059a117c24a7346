"""A search: the lines of its best runs, and each run over its value on each axis."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.analysis.layout import words_of
from raysafl.report.figures.lines import ROUND, Quantity, draw_curve
from raysafl.report.figures.methods import name_below
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    LINES,
    ON_SCREEN,
    Look,
    Style,
    entitle,
    fitted_title,
    label_of_numbers,
    literal,
    looks,
    style_axes,
)
from raysafl.report.wording import scale_text
from raysafl.storage.manifest import Label, label_text

# Largest number of lines that are named.
NAMED = 5
# Inches of a panel on the screen, and largest numbers of panels and of panels side by side.
WIDTH = 2.5
HEIGHT = 2.4
MOST = 16
ACROSS = 4
# Numbers whose largest is at least so many times the smallest stand on a logarithmic axis.
DECADES = 50
# An axis with at most this many numbers has a tick for each.
TICKS = 4
# Largest number of letters of a word at an axis.
LETTERS = 20
# Largest number of words that are written at an axis.
WORDS = 12
ALL_RUNS = Look("#BBBBBB")
OTHER_RUN = Look(LINES[0], is_filled=False)
CLOSE_RUN = Look(LINES[0])
BEST_RUN = Look(LINES[1], mark="*")


def lines_of_search(
    study: Study,
    of_run: Mapping[str, pd.DataFrame],
    what: Quantity,
    notes: Sequence[str],
    style: Style,
) -> list[Figure]:
    """Draw the lines of all runs of a search in grey, but for the best ones, which are named.

    The vertical axis follows the better half of the runs after the first fifth of the
    rounds.

    Args:
        study: the search.
        of_run: the rows of each run that has some.
        what: the column that is drawn.
        notes: what is said below the title.
        style: the style of the figure.
    """
    manifest = study.lines.manifest
    drawn = [entry for entry in manifest.entries if entry.run_id in of_run]
    if not drawn:
        return []
    winner = study.numbers.winner
    ranked = len(of_run.keys() & winner.ranked) if winner else 0
    best = looks(min(NAMED, ranked))
    figure = style.figure(6.4, 4.0 * style.room)
    axes = figure.subplots()
    style_axes(axes)
    limits = []
    # The best lines lie above the others.
    for i in reversed(range(len(drawn))):
        is_best = i < len(best)
        look, band = (best[i], 0.1) if is_best else (ALL_RUNS, 0.0)
        mark = i / NAMED if is_best else None
        rows = of_run[drawn[i].run_id]
        limits.append(draw_curve(axes, rows, look, band, what, mark))
    limits = limits[::-1]
    half = limits[: max(len(best), -(-ranked // 2)) or len(limits)]
    low = min((own[0] for own in half), default=math.inf)
    high = max((own[1] for own in half), default=-math.inf)
    if low <= high:
        room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
        axes.set_ylim(low - room, high + room)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True)
    )
    axes.set_xlabel(ROUND)
    axes.set_ylabel(literal(what.label))
    metric = winner.metric if winner else ""
    named = f"named are the best {len(best)} of {len(drawn):,} runs, by {metric}"
    shown = [named if 0 < len(best) < len(drawn) else "", *notes]
    entitle(figure, manifest.title or manifest.name, shown, style)
    varying = study.lines.layout.varying
    names = [words_of({a: e.labels.get(a) for a in varying}) for e in drawn]
    if best:
        name_below(figure, list(zip(names, best, strict=False)), style, is_line=True)
    return [figure]


def slices(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw the table's statistic of each run over its value on each axis, a panel per axis.

    Only searches have this figure, whose runs were drawn.
    """
    numbers = study.numbers
    part = numbers.part
    manifest = part.manifest
    name = f"mean.{manifest.table.statistic}"
    found = part.entries[np.isfinite(part.entries[name].astype(float))]
    varying = part.layout.varying
    if not manifest.is_drawn or found.empty or not varying:
        return []
    shown = varying[:MOST]
    wide = style.across(WIDTH, min(ACROSS, len(shown)))
    tall = -(-len(shown) // wide)
    figure = style.figure(
        max(6.4, WIDTH * wide + 0.5), style.room * (HEIGHT * tall + 0.8)
    )
    grid = figure.subplots(tall, wide, sharey=True, squeeze=False)
    winner = numbers.winner
    is_best = found["run_id"] == (winner.run_id if winner else "")
    # One seed tells no runs apart.
    has_ties = winner is not None and winner.seeds > 1
    is_close = found["run_id"].isin(winner.ties if winner and has_ties else [])
    # The best run lies above those that are close to it, and these above the others.
    groups = [
        (OTHER_RUN, ~is_best & ~is_close),
        (CLOSE_RUN, is_close),
        (BEST_RUN, is_best),
    ]
    for axes, axis in zip(grid.flat, shown, strict=False):
        style_axes(axes)
        values = numbers.layout.values[axis]
        places = _places(axes, found[f"label.{axis}"].tolist(), values)
        for look, there in groups:
            axes.plot(
                places[there],
                found[name][there],
                look.mark,
                color=look.colour,
                markerfacecolor=look.face,
                markersize=11 if look is BEST_RUN else 5,
                alpha=0.8,
            )
        axes.set_xlabel(fitted_title(axis, figure, wide, style))
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    figure.supylabel(label_of_numbers(manifest.table))
    meaning = manifest.meaning(manifest.table.statistic) or manifest.table.statistic
    metric = winner.metric if winner else ""
    notes = [
        f"a point is a run, its mean over seeds of the {meaning}",
        f"the star is the best run by {metric}" if is_best.any() else "",
        f"filled points are not told apart from it in {metric}" if has_ties else "",
        scale_text(manifest),
        f"shown are {part.share}" if part.share else "",
        f"shown are {MOST} of {len(varying)} axes" if len(varying) > MOST else "",
    ]
    entitle(figure, manifest.title or manifest.name, notes, style)
    return [figure]


def _places(
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
        smallest = places.min()
        if smallest > 0 and places.max() >= DECADES * smallest:
            axes.set_xscale("log")
        elif len(values) <= TICKS:
            axes.set_xticks(np.unique(places))
        else:
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        return places
    order = {value: i for i, value in enumerate(values)}
    gap = -(-len(values) // WORDS)
    texts = [label_text(value) for value in values]
    short = [t if len(t) <= LETTERS else f"{t[: LETTERS - 3]}..." for t in texts]
    axes.set_xticks(range(0, len(values), gap), list(map(literal, short[::gap])))
    for text in axes.get_xticklabels():
        text.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.margins(x=0.15)
    return np.array([order[label] for label in labels], float)
