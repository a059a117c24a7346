"""Curves of a column over rounds: mean and standard deviation over replicates.

The column is the test accuracy, or another one by which the runs are judged.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from raysafl.report.analysis.layout import Key, Layout, labels_text
from raysafl.report.analysis.part import thinned
from raysafl.report.figures.methods import FEW, name_methods
from raysafl.report.figures.style import (
    GREY,
    LETTERS,
    colours,
    dashes,
    literal,
    new_figure,
    style_axes,
    to_png,
    wrapped,
)
from raysafl.report.wording import quality_text
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry, Manifest
from raysafl.storage.statistics import declaration_of

# Largest number of panels on one page.
PANELS = 24
# Largest number of panels on all pages together.
MOST = 192
PANEL_WIDTH = 2.5  # inches
# Largest number of panels side by side that can be read.
ACROSS = 4
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
        if manifest.quality == ACCURACY.column:
            return ACCURACY
        column = declaration_of(manifest.quality, manifest.columns)
        if column is not None and column.is_fraction:
            return cls(manifest.quality, 100, 100, f"{quality_text(manifest)} (%)")
        text = quality_text(manifest)
        return cls(manifest.quality, 1, math.inf, text, lowest=-math.inf)


ACCURACY = Quantity("test_accuracy", 100, 100, "test accuracy (%)")
ENFORCED = Quantity(
    "enforce_prob", 1, 1, "probability of an enforced round", "the same in all rounds"
)


def mean_curve(rounds: pd.DataFrame, what: Quantity = ACCURACY) -> pd.DataFrame:
    """Return mean and standard deviation over replicates of each round.

    The standard deviation has the divisor n - 1, and is NaN for one replicate.
    """
    grouped = rounds.dropna(subset=what.column).groupby("round")[what.column]
    return (
        pd.DataFrame({"mean": grouped.mean(), "std": grouped.std(ddof=1)}) * what.scale
    )


def draw_curve(
    axes: Axes,
    rounds: pd.DataFrame,
    colour: str,
    band: float = 0.2,
    what: Quantity = ACCURACY,
    style: Literal["-", "--"] = "-",
) -> None:
    """Draw the mean as a line, and one standard deviation around it as a band.

    Args:
        axes: where to draw.
        rounds: the rows of one run, as in `rounds/`.
        colour: the colour of line and band.
        band: the opacity of the band, from 0 to 1.
        what: what is drawn.
        style: the style of the line.
    """
    curve = mean_curve(rounds, what)
    numbers = curve.index.to_numpy(float)
    mean = curve["mean"].to_numpy(float)
    std = curve["std"].to_numpy(float)
    mark = "o" if len(numbers) == 1 else None
    axes.plot(numbers, mean, color=colour, linewidth=1.4, marker=mark, linestyle=style)
    if np.isnan(std).all():
        return
    low = np.maximum(mean - std, what.lowest)
    high = np.minimum(mean + std, what.highest)
    axes.fill_between(numbers, low, high, color=colour, alpha=band, linewidth=0)


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
    count = rounds["replicate"].nunique()
    note = f"mean ± std of {count} replicates" if count > 1 else ""
    title = f"{wrapped(title, 6.0)}\n{note}".strip()
    # A layout would draw the figure twice, which takes twice as long.
    figure = new_figure(6.4, 4.0, layout=None)
    figure.subplots_adjust(0.1, 0.12, 0.98, 0.92 - 0.045 * title.count("\n"))
    axes = figure.subplots()
    style_axes(axes)
    for _, rows in rounds.groupby("replicate") if count > 1 else []:
        axes.plot(
            rows["round"],
            what.scale * rows[what.column],
            color=GREY,
            linewidth=0.5,
            alpha=0.5,
        )
    draw_curve(axes, rounds, colours(1)[0], what=what)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True)
    )
    axes.set_xlabel(ROUND, fontsize=LETTERS)
    axes.set_ylabel(literal(what.label), fontsize=LETTERS)
    axes.set_title(title, fontsize=LETTERS + 1)
    return to_png(figure)


def curves(
    rounds: pd.DataFrame,
    manifest: Manifest,
    layout: Layout,
    runs: pd.DataFrame | None = None,
    what: Quantity | None = None,
    note: str = "",
    entries: pd.DataFrame | None = None,
) -> list[bytes]:
    """Draw the curves of a sweep: one line per method, one panel for all other labels.

    Panels share their axes. One page has up to 24 panels; more panels make more pages,
    up to 192 panels, which are evenly spaced if there are more combinations of labels.
    Once there are rows, combinations of labels without any row have no panel.

    Args:
        rounds: rows as in `rounds/`; entries without rows have no line.
        manifest: the sweep.
        layout: the layout of its axes.
        runs: if given, replicates that diverged or failed are left out, as in the
            table.
        what: what is drawn over the rounds; by default that by which runs are judged.
        note: what the title should say besides.
        entries: if given, from `raysafl.report.analysis.entries.aggregate`: the table's
            numbers stand as points with their standard deviation behind the last round,
            if they are values of the column that is drawn.

    Returns:
        A PNG file for each page.
    """
    if not manifest.entries:
        return []
    what = what or Quantity.judging(manifest)
    if what.column not in rounds:
        rounds = rounds.assign(**{what.column: math.nan})
    method = layout.method
    others = [axis for axis in layout.axes if axis != method]
    # Replicates that are not in the table are not drawn either.
    kept, left_out = _of_the_table(rounds, runs)
    of_run = {str(run_id): rows for run_id, rows in kept.groupby("run_id")}
    shown, empty = _begun(manifest, others, of_run, what)
    combinations = layout.combinations(shown, others)
    panels = thinned(combinations, MOST)
    fewer = f"{len(panels)} of {len(combinations):,} panels, evenly spaced"
    fewer = fewer if len(panels) < len(combinations) else ""
    lines = defaultdict[Key, list[Entry]](list)
    for entry in manifest.entries:
        if entry.run_id in of_run:
            lines[tuple(entry.labels.get(axis) for axis in others)].append(entry)
    wide = _wide(panels)
    # A page holds whole rows of panels.
    step = PANELS // wide * wide
    pages = [panels[i : i + step] for i in range(0, len(panels), step)]
    spread = "mean ± std over replicates" if (rounds["replicate"] > 0).any() else ""
    small = "" if manifest.scale == "paper" else f"scale: {manifest.scale}"
    points = {} if entries is None else _points_of_curves(entries, manifest, what)
    shown_points = (
        f"points: {manifest.table.statistic}, as in the table" if points else ""
    )
    made = []
    for i, page in enumerate(pages):
        figure, grid = _panel_grid(len(page), wide, what)
        for axes, panel in zip(grid, page, strict=True):
            labels = dict(zip(others, panel, strict=True))
            title = wrapped(labels_text(labels, others), PANEL_WIDTH)
            axes.set_title(title, fontsize=LETTERS)
            _panel(axes, layout, lines[panel], of_run, what, points)
        title = wrapped(manifest.title or manifest.name, figure.get_figwidth())
        count = f"page {i + 1} of {len(pages)}" if len(pages) > 1 else ""
        texts = [spread, shown_points, small, note, left_out, empty, fewer, count]
        notes = wrapped(", ".join(filter(None, texts)), figure.get_figwidth())
        figure.suptitle(f"{title}\n{notes}".strip(), fontsize=LETTERS + 1)
        name_methods(
            figure,
            layout,
            [
                Line2D([], [], color=c, linewidth=2.5, linestyle=s)
                for c, s in _looks(layout)
            ],
        )
        made.append(to_png(figure))
    return made


def _points_of_curves(
    entries: pd.DataFrame, manifest: Manifest, what: Quantity
) -> dict[str, tuple[float, float]]:
    """Return mean and standard deviation in the table by run, if the column has such values."""
    name = manifest.table.statistic
    known = manifest.statistic(name)
    if (
        known is None
        or known.column != what.column
        or manifest.table.scale != what.scale
    ):
        return {}
    found = entries[entries[f"mean.{name}"].notna()]
    pairs = zip(found[f"mean.{name}"], found[f"std.{name}"], strict=True)
    return dict(zip(found["run_id"], pairs, strict=True))


def _begun(
    manifest: Manifest,
    others: list[str],
    of_run: Mapping[str, pd.DataFrame],
    what: Quantity,
) -> tuple[Manifest, str]:
    """Leave out the panels that have no rows yet; return a note that counts them as well."""
    places = {
        e.run_id: tuple(e.labels.get(axis) for axis in others) for e in manifest.entries
    }
    there = {place for run_id, place in places.items() if run_id in of_run}
    empty = len(set(places.values()) - there)
    if not there or not empty:
        return manifest, ""
    entries = [entry for entry in manifest.entries if places[entry.run_id] in there]
    return manifest.replace(
        entries=entries
    ), f"{empty} of {empty + len(there)} panels {what.empty}"


def _of_the_table(
    rounds: pd.DataFrame, runs: pd.DataFrame | None
) -> tuple[pd.DataFrame, str]:
    """Return the rows of the replicates in the table, and a note that counts the others."""
    if runs is None or runs.empty:
        return rounds, ""
    bad = runs[runs["status"].isin([s for s in Status if s.bad])]
    if bad.empty:
        return rounds, ""
    pairs = pd.MultiIndex.from_frame(rounds[["run_id", "replicate"]])
    left_out = pd.MultiIndex.from_frame(bad[["run_id", "replicate"]])
    kept = rounds[~pairs.isin(left_out)]
    return kept, f"{len(bad)} {' or '.join(sorted(set(bad['status'])))} left out"


def _wide(panels: list[Key]) -> int:
    """Return how many panels stand side by side: one per label of the last axis if it fits."""
    total = len(panels)
    if total and len(panels[0]) > 1:
        last = len({panel[-1] for panel in panels})
        if len({panel[:-1] for panel in panels}) * last == total:
            if 1 < last <= ACROSS:
                return last
            if last in (6, 8):
                return last // 2
    return total if total <= ACROSS else 3 if total <= 6 else ACROSS


def _panel_grid(count: int, wide: int, what: Quantity) -> tuple[Figure, list[Axes]]:
    """Make a figure with `count` panels on shared axes, `wide` of them in a row."""
    tall = -(-count // wide)
    figure = new_figure(max(6.4, PANEL_WIDTH * wide + 0.5), max(4.4, 1.9 * tall + 1.3))
    grid = figure.subplots(tall, wide, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for i, axes in enumerate(panels):
        axes.set_visible(i < count)
        style_axes(axes)
        axes.xaxis.set_major_locator(
            MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True)
        )
        axes.tick_params(labelbottom=i + wide >= count)
        axes.set_xlabel(ROUND if i + wide >= count else "", fontsize=LETTERS)
    figure.supylabel(literal(what.label), fontsize=LETTERS + 1)
    return figure, panels[:count]


def _looks(layout: Layout) -> list[tuple[str, Literal["-", "--"]]]:
    """Return the colour and the style of each method's line."""
    n = len(layout.methods)
    return list(zip(colours(n), dashes(n), strict=True))


def _panel(
    axes: Axes,
    layout: Layout,
    entries: list[Entry],
    of_run: Mapping[str, pd.DataFrame],
    what: Quantity,
    points: Mapping[str, tuple[float, float]],
) -> None:
    """Draw the lines and points of the entries of one panel, which all have rows."""
    method = layout.method
    values = layout.methods
    look = dict(zip(values, _looks(layout), strict=True))
    band = 0.2 if len(values) <= 4 else 0.1 if len(values) <= FEW else 0.05
    for i, entry in enumerate(entries):
        colour, style = look[entry.labels.get(method) if method else None]
        draw_curve(axes, of_run[entry.run_id], colour, band, what, style)
        if entry.run_id in points:
            mean, std = points[entry.run_id]
            # Points of a few methods stand side by side, so that none hides another.
            behind = 1.03 + 0.025 * (i % FEW)
            last = max(1.0, behind * float(of_run[entry.run_id]["round"].max()))
            axes.errorbar(
                last, mean, std, color=colour, fmt="o", markersize=3, capsize=2
            )
    if not entries:
        axes.text(
            0.5, 0.5, "no runs yet", transform=axes.transAxes, ha="center", color=GREY
        )


def enforcement_curves(
    rounds: pd.DataFrame,
    manifest: Manifest,
    layout: Layout,
    runs: pd.DataFrame | None = None,
    note: str = "",
) -> list[bytes]:
    """Draw how the probability of an enforced round moves over the rounds.

    Args:
        rounds: rows as in `rounds/`.
        manifest: the sweep.
        layout: the layout of its axes.
        runs: if given, replicates that diverged or failed are left out.
        note: what the title should say besides.

    Returns:
        PNG files with the runs in which it moves; none if it never does.
    """
    of_run = rounds.groupby("run_id")[ENFORCED.column]
    spread = of_run.max() - of_run.min()
    of_those = rounds[rounds["run_id"].isin(spread.index[spread > 0])]
    known = of_those["run_id"].isin([entry.run_id for entry in manifest.entries]).any()
    if not known:
        return []
    return curves(of_those, manifest, layout, runs, ENFORCED, note)
