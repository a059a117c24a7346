"""Curves of a column over rounds: mean and standard deviation over replicates.

The column is the test accuracy, or another one by which the runs are judged.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.core.text import count
from raysafl.report.analysis.layout import Key, Layout, words_of
from raysafl.report.figures.lines import (
    ENFORCED,
    ROUND,
    Limits,
    Quantity,
    draw_curve,
)
from raysafl.report.figures.methods import FEW, looks_of, name_methods
from raysafl.report.figures.search import lines_of_search
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    APART,
    GREY,
    ON_SCREEN,
    Style,
    entitle,
    fitted_title,
    fitting_letters,
    literal,
    style_axes,
)
from raysafl.report.wording import scale_text
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry, Label

# Panels side by side, and the methods of which they show the lines.
Row: TypeAlias = tuple[list[Key], list[Label]]
# Largest number of panels on all pages together.
MOST = 192
PANEL_WIDTH = 2.5  # inches on the screen, as all sizes below
PANEL_HEIGHT = 1.9
# Room for the title, the legend and the names of the axes.
AROUND = 1.3
# Largest number of panels side by side that can be read, and of lines in one panel.
ACROSS = 4
LINES_OF_PANEL = 5
# A panel whose bands take less than this share of the common range has a range of its own.
ZOOM = 0.1
# Names of lines may take this share of the width, and this room above each other.
NAMES = 0.25
LINE_OF_TEXT = 1.4


def curves(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw the curves of a sweep: one line per method, one panel for all other labels.

    Drawn is the column by which the runs are judged. Panels share their axes; the
    vertical one leaves out the climb of the first fifth of the rounds. Of six to sixteen
    methods with lines in some panels, each row of these has five at most: the
    baseline and a part of the others, which are named beside the panels. More panels than fit on
    a page make more pages, up to the first 192 panels. Once there are rows, combinations of
    labels without any row have no panel. Replicates that diverged or failed are left
    out, as in the table. If the runs were drawn there is one panel, in which the best
    lines are named.
    """
    manifest = study.lines.manifest
    what = Quantity.judging(manifest)
    return _pages(study, study.rounds, what, style)


def enforcement_curves(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw how the probability of an enforced round moves, for the runs in which it does."""
    of_run = study.rounds.groupby("run_id")[ENFORCED.column]
    spread = of_run.max() - of_run.min()
    moving = study.rounds["run_id"].isin(spread.index[spread > 0])
    if not moving.any():
        return []
    return _pages(study, study.rounds[moving], ENFORCED, style)


def _pages(
    study: Study,
    rounds: pd.DataFrame,
    what: Quantity,
    style: Style,
) -> list[Figure]:
    """Draw a column over the rounds, on as many pages as it takes."""
    manifest = study.lines.manifest
    layout = study.lines.layout
    if not manifest.entries:
        return []
    if what.column not in rounds:
        rounds = rounds.assign(**{what.column: math.nan})
    # Those that were stopped have no number in the table, but lines that end early.
    kept, left_out = _without_bad(rounds, study.numbers.runs)
    of_run = {str(run_id): rows for run_id, rows in kept.groupby("run_id")}
    spread = (rounds["replicate"] > 0).any()
    notes = [
        "bands show one standard deviation over seeds" if spread else "",
        scale_text(manifest),
        f"shown are {study.lines.share}" if study.lines.share else "",
        left_out,
    ]
    if manifest.is_drawn:
        return lines_of_search(study, of_run, what, notes, style)
    others = [axis for axis in layout.axes if axis != layout.method]
    of_panel = defaultdict[Key, list[Entry]](list)
    for entry in manifest.entries:
        if entry.run_id in of_run:
            of_panel[entry.key(others)].append(entry)
    every = layout.combinations(manifest, others)
    # Panels that have no rows yet are left out, once others have some.
    begun = [panel for panel in every if panel in of_panel] or every
    empty = f"{what.empty}: {len(every) - len(begun)} of {len(every)} panels"
    panels = begun[:MOST]
    fewer = f"shown are the first {len(panels)} of {len(begun):,} panels"
    notes += [
        empty if len(begun) < len(every) else "",
        fewer if len(panels) < len(begun) else "",
    ]
    plot = _Plot(layout, others, of_run, of_panel, what)
    wide = _wide(panels, style)
    fitting = int((style.height - AROUND) // (PANEL_HEIGHT * style.room))
    pages: list[list[Row]] = [[]]
    for i in range(0, len(panels), wide):
        rows = plot.rows(panels[i : i + wide])
        # The rows of the same panels stay together.
        if pages[-1] and len(pages[-1]) + len(rows) > fitting:
            pages.append([])
        pages[-1] += rows
    made = []
    for i, page in enumerate(pages):
        figure, zoom = plot.page(page, wide, style)
        place = f"this is page {i + 1} of {len(pages)}" if len(pages) > 1 else ""
        entitle(figure, manifest.title or manifest.name, [*notes, zoom, place], style)
        made.append(figure)
    return made


def _shared_out(methods: Sequence[Label], baseline: Label) -> list[list[Label]]:
    """Divide many methods so that a panel can be read; the baseline is in each group."""
    if not LINES_OF_PANEL < len(methods) <= APART:
        return [list(methods)]
    first = baseline if baseline in methods else methods[0]
    others = [method for method in methods if method != first]
    number = -(-len(others) // (LINES_OF_PANEL - 1))
    cuts = [i * len(others) // number for i in range(number + 1)]
    return [[first, *others[cuts[i] : cuts[i + 1]]] for i in range(number)]


@dataclass(frozen=True)
class _Plot:
    """What is drawn on pages of panels, which `others` tell apart, with one line per method."""

    layout: Layout
    others: list[str]
    of_run: Mapping[str, pd.DataFrame]
    of_panel: Mapping[Key, list[Entry]]
    what: Quantity

    def rows(self, panels: list[Key]) -> list[Row]:
        """Return the rows in which panels stand, each with a part of the methods there."""
        entries = [entry for panel in panels for entry in self.of_panel.get(panel, [])]
        here = {self.layout.method_of(entry) for entry in entries}
        methods = [label for label in self.layout.methods if label in here]
        return [(panels, group) for group in _shared_out(methods, self.layout.baseline)]

    def page(self, rows: Sequence[Row], wide: int, style: Style) -> tuple[Figure, str]:
        """Draw rows of panels: those of some labels, each with a group of the methods.

        The lines of a row are named at their ends in its last panel, unless there are many or
        the names are long. A note says whether panels have a vertical axis of their own.
        """
        figure, grid = _panel_grid(rows, wide, self.what, style)
        names = [self.layout.method_name(label) for _, group in rows for label in group]
        room = NAMES * fitting_letters(figure.get_figwidth(), style.small)
        are_few = all(len(group) <= LINES_OF_PANEL for _, group in rows)
        is_short = are_few and max(map(len, names), default=math.inf) <= room
        are_divided = len({tuple(panels) for panels, _ in rows}) < len(rows)
        is_named = self.layout.method is not None and (are_divided or is_short)
        lines: dict[Axes, dict[Label, Limits]] = {}
        before: list[Key] = []
        for row, (panels, group) in zip(grid, rows, strict=True):
            for axes, panel in zip(row, panels, strict=False):
                lines[axes] = self._panel(axes, panel, group)
                if panels != before:
                    labels = dict(zip(self.others, panel, strict=True))
                    title = fitted_title(words_of(labels), figure, wide, style)
                    axes.set_title(title)
            before = panels
        zoom = _set_ranges(lines)
        for row, (panels, group) in zip(grid, rows, strict=True) if is_named else []:
            last = row[len(panels) - 1]
            _name_lines(last, self.layout, group, lines[last], style)
        if not is_named:
            name_methods(figure, self.layout, style, is_line=True)
        return figure, zoom

    def _panel(self, axes: Axes, panel: Key, group: list[Label]) -> dict[Label, Limits]:
        """Draw the lines of one panel; return the limits of each."""
        looks_here = looks_of(self.layout)
        band = 0.2 if len(group) <= 4 else 0.1 if len(group) <= FEW else 0.05
        found: dict[Label, Limits] = {}
        for entry in self.of_panel.get(panel, []):
            label = self.layout.method_of(entry)
            if label not in group:
                continue
            i = group.index(label)
            rows = self.of_run[entry.run_id]
            look = looks_here[label]
            mark = i / len(group) if len(looks_here) <= APART else None
            found[label] = draw_curve(axes, rows, look, band, self.what, mark)
        if not found and panel not in self.of_panel:
            where = axes.transAxes
            axes.text(0.5, 0.5, "no runs yet", transform=where, ha="center", color=GREY)
        return found


def _set_ranges(lines: Mapping[Axes, Mapping[Label, Limits]]) -> str:
    """Give panels one vertical range, and one of its own to each that would show nothing."""
    each = [own for found in lines.values() for own in found.values()]
    low = min((own[0] for own in each if math.isfinite(own[0])), default=0.0)
    high = max((own[1] for own in each if math.isfinite(own[0])), default=1.0)
    bands = {
        axes: (
            min(own[2] for own in found.values()),
            max(own[3] for own in found.values()),
        )
        for axes, found in lines.items()
        if found
    }
    flat = {a for a, (b, t) in bands.items() if 0 <= t - b < ZOOM * (high - low)}
    before = None
    for axes in lines:
        bottom, top = bands[axes] if axes in flat else (low, high)
        room = 0.06 * (top - bottom) or 0.05 * abs(top) or 0.05
        axes.set_ylim(bottom - room, top + room)
        # A panel shows its numbers unless they are those of the one to its left.
        place = axes.get_subplotspec()
        is_first = place is not None and place.is_first_col()
        axes.tick_params(labelleft=is_first or axes.get_ylim() != before)
        before = axes.get_ylim()
    return "panels with numbers of their own at the left are zoomed in" if flat else ""


def _name_lines(
    axes: Axes,
    layout: Layout,
    group: list[Label],
    lines: Mapping[Label, Limits],
    style: Style,
) -> None:
    """Name each line of a panel at its right end, with its mark, and apart from others.

    A name stands as near to the end of its line as the others let it. One without a line
    here stands lowest.
    """
    low, high = axes.get_ylim()
    known = looks_of(layout)
    ends = {
        label: float(np.clip((last - low) / (high - low), 0, 1))
        for label, (*_, last) in lines.items()
        if math.isfinite(last)
    }
    ordered = sorted(group, key=lambda label: ends.get(label, -1.0))
    wanted = np.array([ends.get(label, 0.0) for label in ordered])
    height = 72 * style.room * (PANEL_HEIGHT - 0.1)
    step = min(LINE_OF_TEXT * style.small / height, 1 / len(group))
    steps = step * np.arange(len(group))
    # The names are pushed up from below and down from above, and the means are taken.
    up = np.minimum(np.maximum.accumulate(wanted - steps), 1 - steps[-1]) + steps
    down = np.minimum.accumulate((wanted - steps)[::-1])[::-1]
    places = (up + np.maximum(down, 0) + steps) / 2
    for label, end, place in zip(ordered, wanted, places, strict=True):
        look = known[label]
        leader = Line2D([1.0, 1.08], [end, place], transform=axes.transAxes)
        leader.set(color=look.colour, linewidth=0.8, visible=label in ends)
        leader.set(
            markevery=[1], marker=look.mark, markerfacecolor=look.face, markersize=4
        )
        # It belongs to the figure, so that the lines of the axes are those of the methods.
        axes.figure.add_artist(leader)
        axes.annotate(
            literal(layout.method_name(label)),
            (1.08, place),
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center",
        )


def _without_bad(rounds: pd.DataFrame, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of replicates that did not end badly, and a note that counts those."""
    bad = runs[runs["status"].isin([s for s in Status if s.bad])]
    bad = bad[bad["run_id"].isin(rounds["run_id"])]
    if bad.empty:
        return rounds, ""
    pairs = pd.MultiIndex.from_frame(rounds[["run_id", "replicate"]])
    left_out = pd.MultiIndex.from_frame(bad[["run_id", "replicate"]])
    kept = rounds[~pairs.isin(left_out)]
    ends = " or ".join(sorted(set(bad["status"])))
    return kept, f"{count(len(bad), f'{ends} replicate')} left out"


def _wide(panels: list[Key], style: Style) -> int:
    """Return how many panels stand side by side: one per label of the last axis if it fits."""
    total = len(panels)
    across = style.across(PANEL_WIDTH, ACROSS)
    if total and len(panels[0]) > 1:
        last = len({panel[-1] for panel in panels})
        if len({panel[:-1] for panel in panels}) * last == total:
            if 1 < last <= across:
                return last
            if last in (6, 8) and last // 2 <= across:
                return last // 2
    return min(across, total if total <= ACROSS else 3 if total <= 6 else ACROSS)


def _panel_grid(
    rows: Sequence[Row],
    wide: int,
    what: Quantity,
    style: Style,
) -> tuple[Figure, NDArray[Any]]:
    """Make a figure with rows of panels on shared axes, `wide` of them in a row."""
    tall = len(rows)
    height = style.room * (PANEL_HEIGHT * tall + AROUND)
    screen = max(4.4, height) if not style.is_fixed else height
    figure = style.figure(max(6.4, PANEL_WIDTH * wide + 0.5), screen)
    grid = figure.subplots(tall, wide, sharex=True, squeeze=False)
    counts = [len(panels) for panels, _ in rows] + [0]
    for (i, j), axes in np.ndenumerate(grid):
        is_last = j >= counts[i + 1]
        axes.set_visible(j < counts[i])
        style_axes(axes)
        axes.xaxis.set_major_locator(
            MaxNLocator(
                nbins=6 if style.room == 1 else 4, steps=[1, 2, 5, 10], integer=True
            )
        )
        axes.tick_params(labelbottom=is_last)
        axes.set_xlabel(ROUND if is_last else "")
    figure.supylabel(literal(what.label))
    return figure, grid
