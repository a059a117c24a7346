"""The table as a heat map: one panel per method, one axis across, the others down."""

import math
from typing import Any

import numpy as np
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
    label_of_numbers,
    literal,
    wrapped,
)
from raysafl.report.wording import NOTHING, number, scale_text
from raysafl.storage.manifest import Manifest, label_text

# Number of entries down or across that can still be read.
LARGEST = 40
# Number of letters that fit below an entry, and inches that its number takes.
SHORT = 7
WIDTH_OF_NUMBER = 0.34
COLOURS = "cividis"


def heatmap(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw the means of the table's statistic as colours and numbers.

    There is none if fewer than two axes have several labels, if there is no number yet,
    if there are more entries than can be read, or if the runs were drawn.
    """
    part = study.numbers.part
    manifest = part.manifest
    layout = part.layout
    entries = part.entries
    if manifest.is_drawn:
        return []
    panel_axes, down, across = heatmap_axes(manifest, layout)
    name = f"mean.{manifest.table.statistic}"
    means = entries[name].replace([math.inf, -math.inf], math.nan)
    there = set(entries.loc[means.notna(), "run_id"])
    begun = manifest.replace(entries=[e for e in manifest.entries if e.run_id in there])
    # Panels without any number are left out.
    panels = layout.combinations(begun, panel_axes)
    rows = layout.combinations(manifest, down)
    columns = layout.combinations(manifest, across)
    sizes = (len(panels), len(rows), len(columns))
    if not across or means.isna().all() or max(sizes) > LARGEST:
        return []

    found = entries_by_labels(
        entries.assign(**{name: means}), [*panel_axes, *down, *across]
    )
    norm = Normalize(float(means.min()), float(means.max()))
    longest = [max(len(_tick_text(k)) for k in part) for part in (rows, columns)]
    figure, grid = _heatmap_grid(sizes, longest, style)
    for i, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        values = [
            [
                found.get((*panel, *row, *column), {name: math.nan})[name]
                for column in columns
            ]
            for row in rows
        ]
        _draw_panel(axes, np.array(values, float), norm, manifest.table.unit, style)
        title = labels_text(dict(zip(panel_axes, panel, strict=True)), panel_axes)
        width = _panel_width(len(columns), style)
        axes.set_title(wrapped(title, width, style.letters))
        axes.set_yticks(range(len(rows)), [_tick_text(key) for key in rows])
        heads = [_tick_text(key) for key in columns]
        axes.set_xticks(range(len(heads)), heads)
        # Labels that are wider than an entry end below it, at an angle.
        if max(map(len, heads)) > SHORT:
            for label in axes.get_xticklabels():
                label.set(rotation=40, ha="right", rotation_mode="anchor")
        axes.tick_params(labelbottom=i + grid.shape[1] >= len(panels))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    _write_texts(figure, grid, study.numbers.manifest, norm, (down, across), style)
    return [figure]


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
    return literal(", ".join(label_text(value) for value in key))


def _panel_width(columns: int, style: Style) -> float:
    """Return the width of a panel in inches."""
    if style.is_fixed:
        return max(0.8, WIDTH_OF_NUMBER * columns)
    return max(2.0, 0.62 * columns + 0.3)


def _heatmap_grid(
    sizes: tuple[int, int, int], longest: list[int], style: Style
) -> tuple[Figure, NDArray[Any]]:
    """Make a figure with as many panels side by side as fit, and room for the longest labels."""
    panels, rows, columns = sizes
    width = _panel_width(columns, style)
    # The labels of rows, the name of their axis and the colours.
    beside = 0.08 * longest[0] * style.small / 8 + (0.75 if style.is_fixed else 1.5)
    room = style.width - beside if style.is_fixed else 12.0
    wide = max(1, min(panels, int(room // width)))
    tall = -(-panels // wide)
    turned = 0.05 * longest[1] if longest[1] > SHORT else 0.0
    line = 0.42 if not style.is_fixed else 0.19
    height = tall * (line * rows + 0.4) + turned
    figure = style.figure(
        max(5.0, wide * width + beside),
        height + 0.35 if style.is_fixed else max(3.0, height + 1.2),
    )
    return figure, figure.subplots(tall, wide, sharex=True, sharey=True, squeeze=False)


def _draw_panel(
    axes: Axes, values: NDArray[np.float64], norm: Normalize, unit: str, style: Style
) -> None:
    """Colour the entries and write their numbers, dark on light and light on dark."""
    axes.imshow(values, cmap=COLOURS, norm=norm, aspect="auto")
    axes.set_facecolor("#EEEEEE")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    middle = ((norm.vmin or 0.0) + (norm.vmax or 0.0)) / 2
    for (row, column), value in np.ndenumerate(values):
        short = f"{value:.1f}" if unit == "%" else number(value, unit)
        is_none = math.isnan(value)
        text = axes.text(column, row, NOTHING if is_none else short)
        text.set(ha="center", va="center")
        text.set_color("black" if is_none or value > middle else "white")


def _write_texts(
    figure: Figure,
    grid: NDArray[Any],
    manifest: Manifest,
    norm: Normalize,
    axes: tuple[list[str], list[str]],
    style: Style,
) -> None:
    """Write the title, the names of the axes and the scale of the colours."""
    down, across = axes
    table = manifest.table
    figure.supxlabel(literal(", ".join(across)))
    figure.supylabel(literal(", ".join(down)))
    bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=grid, pad=0.02, aspect=30)
    bar.set_label(label_of_numbers(table))
    bar.outline.set_visible(False)
    meaning = manifest.meaning(table.statistic) or table.statistic
    about = f"numbers are means over seeds of the {meaning}"
    notes = [about, scale_text(manifest)]
    entitle(figure, manifest.title or manifest.name, notes, style)
