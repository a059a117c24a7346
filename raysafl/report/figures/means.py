"""Figures of the table's means: a heat map, a search's runs, and methods over all settings."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.analysis.layout import (
    Layout,
    entries_by_labels,
    labels_text,
)
from raysafl.report.analysis.numbers import Study
from raysafl.report.figures.style import (
    GREY,
    LINES,
    OKABE_ITO,
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
    fitted,
    label_of_numbers,
    style_axes,
    wrapped,
)
from raysafl.report.wording import NOTHING, number
from raysafl.storage.manifest import Label, Manifest, label_text

# Number of entries down or across that can still be read.
LARGEST = 40
# Number of letters that fit below an entry.
SHORT = 7
COLOURS = "cividis"


def heatmap(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the means of the table's statistic as colours and numbers.

    There is none if fewer than two axes have several labels, if there is no number yet,
    if there are more entries than can be read, or if the runs were drawn.
    """
    manifest = study.numbers.manifest
    layout = study.numbers.layout
    entries = study.numbers.entries
    panel_axes, down, across = heatmap_axes(manifest, layout)
    rows = layout.combinations(manifest, down)
    columns = layout.combinations(manifest, across)
    name = f"mean.{manifest.table.statistic}"
    means = entries[name].replace([math.inf, -math.inf], math.nan)
    is_small = max(len(rows), len(columns)) <= LARGEST
    if manifest.is_drawn or not across or means.isna().all() or not is_small:
        return None
    there = set(entries.loc[means.notna(), "run_id"])
    begun = manifest.replace(entries=[e for e in manifest.entries if e.run_id in there])
    # Panels without any number are left out.
    every = layout.combinations(begun, panel_axes)
    left, below = (
        [", ".join(map(label_text, key)) for key in keys] for keys in (rows, columns)
    )
    # Labels that are wider than an entry stand below it at an angle.
    turned = max(map(len, below)) > SHORT
    height = 0.42 * len(rows) + 0.4 + (0.05 * max(map(len, below)) if turned else 0.0)
    figure, panels = style.panels(
        len(every),
        max(2.0, 0.62 * len(columns) + 0.3),
        height,
        across=len(every),
        # The labels of rows, the name of their axis and the colours.
        beside=1.5 + 0.08 * max(map(len, left)),
        sharex=True,
        sharey=True,
    )
    entry_of = entries_by_labels(
        entries.assign(**{name: means}), [*panel_axes, *down, *across]
    )
    norm, extend = _colour_scale(means)
    nothing = {name: math.nan}
    for panel, axes in zip(every, panels, strict=False):
        values = [
            [entry_of.get((*panel, *row, *column), nothing)[name] for column in columns]
            for row in rows
        ]
        _draw_panel(axes, np.array(values, float), norm, manifest.table.unit)
        labels = dict(zip(panel_axes, panel, strict=True))
        axes.set_title(fitted(axes, labels_text(labels, panel_axes)))
        axes.set_yticks(range(len(left)), left)
        axes.set_xticks(range(len(below)), below)
        if turned:
            # Labels end at their ticks, at an angle.
            for label in axes.get_xticklabels():
                label.set(rotation=40, ha="right", rotation_mode="anchor")
    figure.supxlabel(", ".join(across))
    figure.supylabel(", ".join(down))
    scale = ScalarMappable(norm, COLOURS)
    bar = figure.colorbar(scale, ax=panels, pad=0.02, aspect=30, extend=extend)
    bar.set_label(label_of_numbers(manifest.table))
    bar.outline.set_visible(False)
    meaning = manifest.meaning(manifest.table.statistic) or manifest.table.statistic
    notes = [
        f"numbers are means over seeds of the {meaning}",
        "the ends of the scale also stand for values beyond"
        if extend != "neither"
        else "",
        first_ones(len(panels), len(every), "panels"),
    ]
    entitle(figure, manifest.title or manifest.name, notes, style)
    return figure


def _colour_scale(means: "pd.Series[float]") -> tuple[Normalize, str]:
    """Return the scale of the colours, and the ends at which it is cut.

    It is cut at three times the width of the middle half of the values beyond that (Tukey's
    outer fences), so that one outlier does not make all others look alike.
    """
    low, high = means.quantile([0.25, 0.75])
    fence = 3 * (high - low)
    first = max(means.min(), low - fence)
    last = min(means.max(), high + fence)
    cut = (first > means.min(), last < means.max())
    ends = {(False, False): "neither", (True, False): "min", (False, True): "max"}
    return Normalize(float(first), float(last)), ends.get(cut, "both")


def heatmap_axes(
    manifest: Manifest, layout: Layout
) -> tuple[list[str], list[str], list[str]]:
    """Return the axes of the panels, those that go down, and the one that goes across.

    Only axes with several labels count; if there are fewer than two, all three are
    empty.
    """
    several = layout.varying
    if len(several) < 2:
        return [], [], []
    panel = [axis for axis in manifest.table.panels if axis in several]
    if not panel and len(several) > 2:
        panel = [layout.method if layout.method in several else several[0]]
    rest = [axis for axis in several if axis not in panel]
    return panel, rest[:-1], rest[-1:]


def _draw_panel(
    axes: Axes, values: NDArray[np.float64], norm: Normalize, unit: str
) -> None:
    """Colour the entries and write their numbers, dark on light and light on dark."""
    axes.imshow(values, cmap=COLOURS, norm=norm, aspect="auto")
    axes.set_facecolor("#EEEEEE")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    middle = ((norm.vmin or 0.0) + (norm.vmax or 0.0)) / 2
    for (row, column), value in np.ndenumerate(values):
        short = f"{value:.1f}" if unit == "%" else number(value, unit)
        is_none = math.isnan(value)
        text = axes.text(column, row, NOTHING if is_none else short)
        text.set(ha="center", va="center")
        text.set_color("black" if is_none or value > middle else "white")


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
