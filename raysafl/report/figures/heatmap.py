"""The table as a heat map: one panel per method, one axis across, the others down."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from raysafl.report.analysis.layout import (
    Key,
    Layout,
    entries_by_labels,
    labels_text,
)
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
    fitted,
    label_of_numbers,
    turn_labels,
)
from raysafl.report.wording import NOTHING, number
from raysafl.storage.manifest import Manifest, label_text

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
    left, below = (list(map(_tick_text, keys)) for keys in (rows, columns))
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
            turn_labels(axes)
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


def _tick_text(key: Key) -> str:
    """Write the labels of a row or a column."""
    return ", ".join(map(label_text, key))


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
