"""Curves of a column over rounds: mean and standard deviation over replicates.

The column is the test accuracy, or another one by which the runs are judged.
"""

import math
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysafl.core.record import VIRTUAL_SECONDS
from raysafl.core.text import count
from raysafl.report.analysis.layout import Key, Layout, words_of
from raysafl.report.analysis.winner import Winner
from raysafl.report.figures.lines import ENFORCED, Quantity, draw_curve, scale_axes
from raysafl.report.figures.methods import lines_of, name_below
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
    fitted,
)
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry, Manifest

# Largest number of panels side by side that can be read.
ACROSS = 4
# Largest number of lines of a search.
BEST = 5
# Largest number of methods whose bands are dark.
FEW_BANDS = 4


def curves(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the curves of a sweep: one line per method, one panel for all other labels.

    Drawn is the column by which the runs are judged. A baseline that has one label alone on
    an axis, such as FedAvg without server data, is a line in every panel. Panels share
    their axes; the vertical one leaves out the climb of the first fifth of the rounds. Of
    more panels than fit on a page the first ones are drawn, and a note says of how many.
    Combinations of labels without any row have no panel. Seeds that diverged or failed are
    left out, as in the table. Of a search there is one panel with the best runs. There is no
    figure before a run has rows.
    """
    what = Quantity.judging(study.numbers.shown)
    return _curves_of(study, study.rounds, what, style)


def over_time(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the curves over virtual seconds, for the runs whose clients have devices."""
    if VIRTUAL_SECONDS not in study.rounds:
        return None
    rounds = study.rounds.dropna(subset=VIRTUAL_SECONDS)
    keys = ["run_id", "replicate"]
    passed = {VIRTUAL_SECONDS: rounds.groupby(keys)[VIRTUAL_SECONDS].cumsum()}
    # A round without participants may take no time.
    rounds = rounds.assign(**passed).drop_duplicates([*keys, *passed], keep="last")
    what = replace(Quantity.judging(study.numbers.shown), over=VIRTUAL_SECONDS)
    return _curves_of(study, rounds, what, style)


def enforcement_curves(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw how the probability of an enforced round moves, for the runs in which it does."""
    of_run = study.rounds.groupby("run_id")[ENFORCED.column]
    spread = of_run.max() - of_run.min()
    moving = study.rounds["run_id"].isin(spread.index[spread > 0])
    return _curves_of(study, study.rounds[moving], ENFORCED, style)


def _curves_of(
    study: Study, rounds: pd.DataFrame, what: Quantity, style: Style
) -> Figure | None:
    """Draw a column over its rounds; there is no figure if it has no value."""
    if what.column not in rounds:
        return None
    manifest = study.numbers.shown
    layout = study.numbers.layout
    good, left_out = _without_bad(rounds, study.numbers.runs)
    known = good[good[what.column].abs() < math.inf]
    of_run = {str(run_id): rows for run_id, rows in known.groupby("run_id")}
    entries = [entry for entry in manifest.entries if entry.run_id in of_run]
    if not entries:
        return None
    has_bands = (rounds["replicate"] > 0).any()
    notes = [
        "bands show one standard deviation over seeds" if has_bands else "",
        f"shown are {study.numbers.share}" if study.numbers.share else "",
        left_out,
    ]
    others = [axis for axis in layout.axes if axis != layout.method]
    if manifest.is_drawn:
        others = []
        entries, note = _best_runs(entries, study.numbers.winner)
        notes.append(note)
        manifest = manifest.replace(entries=entries)
    figure, panel_of = _panels_of(
        layout.combinations(manifest.replace(entries=entries), others),
        others,
        what,
        style,
    )
    line_of = lines_of(manifest, layout)
    each = list(dict.fromkeys(line_of.values()))
    band = 0.2 if len(each) <= FEW_BANDS else 0.08
    limits = []
    drawn = set()
    for labels, axes in panel_of.items():
        for entry in _lines_of_panel(labels, others, manifest, layout):
            if entry.run_id in of_run:
                line = line_of[entry.run_id]
                drawn.add(line)
                rows = of_run[entry.run_id]
                place = each.index(line) / len(each)
                limits.append(draw_curve(axes, rows, line[1], band, what, place))
    scale_axes(figure.axes[0], limits)
    figure.supylabel(what.label)
    number = len({entry.key(others) for entry in entries})
    notes.append(first_ones(len(panel_of), number, "panels"))
    entitle(figure, manifest.title or manifest.name, notes, style)
    name_below(figure, [line for line in each if line in drawn], style, is_line=True)
    return figure


def _panels_of(
    keys: list[Key], axes: list[str], what: Quantity, style: Style
) -> tuple[Figure, dict[Key, Axes]]:
    """Make a panel for each combination of labels on some axes, of too many for the first."""
    # One column of panels for each label of the last axis, if that fits.
    last = len({labels[-1:] for labels in keys})
    number = len(keys)
    wide = last if 1 < last <= ACROSS and number % last == 0 else ACROSS
    figure, panels = style.panels(
        number,
        2.5,
        1.9 if number > 1 else 3.0,
        wide,
        below=what.over.replace("_", " "),
        sharex=True,
        sharey=True,
    )
    for labels, panel in zip(keys, panels, strict=False):
        title = words_of(dict(zip(axes, labels, strict=True)))
        panel.set_title(fitted(panel, title))
    return figure, dict(zip(keys, panels, strict=False))


def _best_runs(entries: list[Entry], winner: Winner | None) -> tuple[list[Entry], str]:
    """Return the best runs of a search, and a note that counts them."""
    if winner is None:
        return entries[:BEST], ""
    best = [entry for entry in entries if entry.run_id in winner.ranked[:BEST]]
    return (
        best,
        f"shown are the best {len(best)} of {len(entries):,} runs, by {winner.metric}",
    )


def _lines_of_panel(
    labels: Key, axes: list[str], manifest: Manifest, layout: Layout
) -> list[Entry]:
    """Return the entries with these labels on some axes, and a baseline for them.

    Where no baseline has these labels, it is the one that has the same on all axes on which
    baselines differ.
    """
    own = [entry for entry in manifest.entries if entry.key(axes) == labels]
    bases = [e for e in manifest.entries if layout.method_of(e) == layout.baseline]
    if any(entry in bases for entry in own):
        return own
    free = [axis for axis in axes if len({e.labels.get(axis) for e in bases}) > 1]
    wanted = dict(zip(axes, labels, strict=True))
    return own + [e for e in bases if all(e.labels.get(a) == wanted[a] for a in free)]


def _without_bad(rounds: pd.DataFrame, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return the rows of replicates that did not end badly, and a note that counts those."""
    # Those that were stopped have no number in the table, but lines that end early.
    bad = runs[runs["status"].isin([s for s in Status if s.bad])]
    bad = bad[bad["run_id"].isin(rounds["run_id"])]
    if bad.empty:
        return rounds, ""
    pairs = pd.MultiIndex.from_frame(rounds[["run_id", "replicate"]])
    left_out = pd.MultiIndex.from_frame(bad[["run_id", "replicate"]])
    ends = " or ".join(sorted(set(bad["status"])))
    note = f"{count(len(bad), f'{ends} seed')} left out"
    return rounds[~pairs.isin(left_out)], note
