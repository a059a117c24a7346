"""Curves of a column over rounds: mean and standard deviation over replicates.

The column is the test accuracy, or another one by which the runs are judged.
"""

import math
from collections import defaultdict

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raysafl.core.text import count
from raysafl.report.analysis.layout import Key, words_of
from raysafl.report.figures.lines import ENFORCED, ROUND, Quantity, draw_curve
from raysafl.report.figures.methods import looks_of, name_methods
from raysafl.report.figures.search import lines_of_search
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    APART,
    GREY,
    ON_SCREEN,
    Style,
    entitle,
    fitted_title,
    literal,
    style_axes,
)
from raysafl.report.wording import scale_text
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry

PANEL_WIDTH = 2.5  # inches on the screen, as all sizes below
PANEL_HEIGHT = 1.9
# Room for the title, the legend and the names of the axes.
AROUND = 1.3
# Largest number of panels side by side that can be read.
ACROSS = 4
# Largest number of lines of a panel whose bands are dark.
FEW_BANDS = 4


def curves(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw the curves of a sweep: one line per method, one panel for all other labels.

    Drawn is the column by which the runs are judged. Panels share their axes; the
    vertical one leaves out the climb of the first fifth of the rounds. Of more panels than
    fit on a page the first ones are drawn, and a note says of how many. Once there are rows,
    combinations of labels without any row have no panel. Replicates that diverged or failed
    are left out, as in the table. If the runs were drawn there is one panel, in which the
    best lines are named.
    """
    what = Quantity.judging(study.lines.manifest)
    return _curves_of(study, study.rounds, what, style)


def enforcement_curves(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw how the probability of an enforced round moves, for the runs in which it does."""
    of_run = study.rounds.groupby("run_id")[ENFORCED.column]
    spread = of_run.max() - of_run.min()
    moving = study.rounds["run_id"].isin(spread.index[spread > 0])
    if not moving.any():
        return []
    return _curves_of(study, study.rounds[moving], ENFORCED, style)


def _curves_of(
    study: Study, rounds: pd.DataFrame, what: Quantity, style: Style
) -> list[Figure]:
    """Draw a column over the rounds."""
    manifest = study.lines.manifest
    layout = study.lines.layout
    if not manifest.entries:
        return []
    if what.column not in rounds:
        rounds = rounds.assign(**{what.column: math.nan})
    # Those that were stopped have no number in the table, but lines that end early.
    good, left_out = _without_bad(rounds, study.numbers.runs)
    of_run = {str(run_id): rows for run_id, rows in good.groupby("run_id")}
    has_bands = (rounds["replicate"] > 0).any()
    notes = [
        "bands show one standard deviation over seeds" if has_bands else "",
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
    wide = _wide(begun, style)
    panels = begun[: wide * int((style.height - AROUND) // (PANEL_HEIGHT * style.room))]
    if len(begun) < len(every):
        missing = len(every) - len(begun)
        notes.append(f"{what.empty}: {missing} of {len(every)} panels")
    if len(panels) < len(begun):
        notes.append(f"shown are the first {len(panels)} of {len(begun):,} panels")
    figure = _panels(study, panels, of_panel, of_run, what, wide, style)
    entitle(figure, manifest.title or manifest.name, notes, style)
    name_methods(figure, layout, style, is_line=True)
    return [figure]


def _panels(
    study: Study,
    panels: list[Key],
    of_panel: dict[Key, list[Entry]],
    of_run: dict[str, pd.DataFrame],
    what: Quantity,
    wide: int,
    style: Style,
) -> Figure:
    """Draw the lines of each panel, `wide` panels side by side, on shared axes."""
    layout = study.lines.layout
    tall = -(-len(panels) // wide)
    height = style.room * (PANEL_HEIGHT * tall + AROUND)
    figure = style.figure(
        max(6.4, PANEL_WIDTH * wide + 0.5),
        height if style.is_fixed else max(4.4, height),
    )
    grid = figure.subplots(tall, wide, sharex=True, sharey=True, squeeze=False)
    others = [axis for axis in layout.axes if axis != layout.method]
    looks = looks_of(layout)
    order = list(looks)
    limits = []
    for i, axes in enumerate(grid.flat):
        axes.set_visible(i < len(panels))
        if i >= len(panels):
            continue
        style_axes(axes)
        entries = of_panel.get(panels[i], [])
        if not entries:
            axes.text(
                0.5,
                0.5,
                "no runs yet",
                transform=axes.transAxes,
                ha="center",
                color=GREY,
            )
        band = 0.2 if len(entries) <= FEW_BANDS else 0.08
        for entry in entries:
            label = layout.method_of(entry)
            first_mark = (
                order.index(label) / len(order) if len(order) <= APART else None
            )
            rows = of_run[entry.run_id]
            limits.append(draw_curve(axes, rows, looks[label], band, what, first_mark))
        words = words_of(dict(zip(others, panels[i], strict=True)))
        axes.set_title(fitted_title(words, figure, wide, style))
        if i + wide >= len(panels):
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(ROUND)
    nbins = 4 if style.is_fixed else 6
    first = grid.flat[0]
    first.xaxis.set_major_locator(MaxNLocator(nbins, steps=[1, 2, 5, 10], integer=True))
    low = min((low for low, _ in limits), default=math.inf)
    high = max((high for _, high in limits), default=-math.inf)
    if low <= high:
        room = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
        first.set_ylim(low - room, high + room)
    figure.supylabel(literal(what.label))
    return figure


def _without_bad(rounds: pd.DataFrame, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of replicates that did not end badly, and a note that counts those."""
    bad = runs[runs["status"].isin([s for s in Status if s.bad])]
    bad = bad[bad["run_id"].isin(rounds["run_id"])]
    if bad.empty:
        return rounds, ""
    pairs = pd.MultiIndex.from_frame(rounds[["run_id", "replicate"]])
    left_out = pd.MultiIndex.from_frame(bad[["run_id", "replicate"]])
    ends = " or ".join(sorted(set(bad["status"])))
    note = f"{count(len(bad), f'{ends} replicate')} left out"
    return rounds[~pairs.isin(left_out)], note


def _wide(panels: list[Key], style: Style) -> int:
    """Return how many panels stand side by side: one per label of the last axis if it fits."""
    across = style.across(PANEL_WIDTH, ACROSS)
    last = len({panel[-1:] for panel in panels})
    is_grid = len({panel[:-1] for panel in panels}) * last == len(panels)
    if is_grid and 1 < last <= across:
        return last
    if is_grid and last in (6, 8) and last // 2 <= across:
        return last // 2
    return min(across, max(1, len(panels)) if len(panels) <= ACROSS else 3)
