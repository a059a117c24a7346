"""Curves of a column over rounds: mean and standard deviation over replicates.

The column is the test accuracy, or another one by which the runs are judged.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raysafl.core.record import VIRTUAL_SECONDS
from raysafl.core.text import count
from raysafl.report.analysis.layout import Key, Layout, words_of
from raysafl.report.analysis.numbers import Study
from raysafl.report.analysis.winner import Winner
from raysafl.report.figures.style import (
    ON_SCREEN,
    Look,
    Style,
    entitle,
    first_ones,
    fitted,
    lines_of,
    name_below,
)
from raysafl.report.wording import quality_text
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry, Manifest
from raysafl.storage.statistics import declaration_of

MARKS_OF_LINE = 4
ROUND = "round"


@dataclass(frozen=True)
class Quantity:
    """A column of `rounds/` that is drawn over the rounds.

    Attributes:
        column: the name of the column.
        label: the text at the vertical axis.
        scale: the factor by which its values are multiplied.
        over: the column of the horizontal axis.
        climb: the share of the first rounds that the vertical axis may cut off.
    """

    column: str
    label: str
    scale: float = 1.0
    over: str = ROUND
    climb: float = 0.2

    @classmethod
    def judging(cls, manifest: Manifest) -> "Quantity":
        """Return the quantity by which the runs of a sweep are judged."""
        text = quality_text(manifest)
        column = declaration_of(manifest.quality, manifest.columns)
        if column is not None and column.is_fraction:
            return cls(manifest.quality, f"{text} (%)", 100)
        return cls(manifest.quality, text)


ENFORCED = Quantity("enforce_prob", "probability of an enforced round", climb=0.0)


def draw_curve(
    axes: Axes,
    rounds: pd.DataFrame,
    look: Look,
    band: float,
    what: Quantity,
    first_mark: float,
) -> tuple[float, float]:
    """Draw the mean of a run's rows as a line, and one standard deviation as a band around it.

    A replicate that ends before others of the run keeps its last value, as in the table; and
    over another column than the rounds, a value is kept until the next one.

    Args:
        axes: the panel.
        rounds: the run's rows that have a value.
        look: how the line looks.
        band: how dark the band is, from 0 (no band) to 1.
        what: the column that is drawn.
        first_mark: where the first mark is, from 0 to 1 of the way to the second one, so
            that lines do not have theirs at the same rounds.

    Returns:
        The lowest and the highest mean after the rounds that may be cut off.
    """
    held = rounds.pivot(index=what.over, columns="replicate", values=what.column)
    # Where a replicate has no value yet, the others alone are no mean.
    held = held.ffill().dropna()
    held *= what.scale
    mean = held.mean(axis=1)
    std = held.std(axis=1).fillna(0.0)
    gap = max(1, len(held) // MARKS_OF_LINE)
    axes.plot(
        held.index,
        mean,
        color=look.colour,
        linestyle=look.dash,
        linewidth=1.4,
        marker=look.mark,
        markevery=(int(first_mark * gap), gap),
        markersize=4.5,
        markerfacecolor=look.face,
    )
    if std.any() and band:
        axes.fill_between(
            held.index,
            mean - std,
            mean + std,
            color=look.colour,
            alpha=band,
            linewidth=0,
        )
    later = mean.iloc[int(what.climb * len(mean)) :]
    return float(later.min()), float(later.max())


def scale_axes(axes: Axes, limits: Sequence[tuple[float, float]]) -> None:
    """Number the rounds, and let the vertical axis reach from the lowest to the highest mean.

    Args:
        axes: a panel that shares its axes with all others.
        limits: what `draw_curve` returned for the lines that are to be seen.
    """
    low = min(low for low, _ in limits)
    high = max(high for _, high in limits)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    axes.set_ylim(low - margin, high + margin)
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))


# Largest number of panels side by side that can be read.
ACROSS = 4
# Largest number of lines of a search, and of one panel: more of them hide each other.
BEST = 5
LINES = 100
# Largest number of methods whose bands are dark.
FEW_BANDS = 4


def curves(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw the curves of a sweep: one line per method, one panel for all other labels.

    Drawn is the column by which the runs are judged. A baseline that has one label alone on
    an axis, such as FedAvg without server data, is a line in every panel. Panels share
    their axes; the vertical one leaves out the climb of the first fifth of the rounds. Of
    more panels than fit on a page the first ones are drawn, and a note says of how many.
    If a panel has more than `LINES` lines, one in two is drawn, or one in three. Combinations of
    labels without any row have no panel. Seeds that diverged or failed are left out, as in the
    table. Of a search there is one panel with the best runs. There is no figure before a
    run has rows.
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
    shown = {
        axes: [
            entry
            for entry in _lines_of_panel(labels, others, manifest, layout)
            if entry.run_id in of_run
        ]
        for labels, axes in panel_of.items()
    }
    step = math.ceil(max(map(len, shown.values())) / LINES)
    for axes, own in shown.items():
        for entry in own[::step]:
            line = line_of[entry.run_id]
            drawn.add(line)
            rows = of_run[entry.run_id]
            place = each.index(line) / len(each)
            limits.append(draw_curve(axes, rows, line[1], band, what, place))
    scale_axes(figure.axes[0], limits)
    figure.supylabel(what.label)
    number = len({entry.key(others) for entry in entries})
    notes.append(first_ones(len(panel_of), number, "panels"))
    if step > 1:
        notes.append(f"one in {step} lines is drawn, as more would hide each other")
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
