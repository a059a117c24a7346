"""The table's statistic against cost: server samples, enforced rounds and traffic."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from raysafl.report.analysis.layout import words_of
from raysafl.report.analysis.pareto import COSTS, find_problems, front
from raysafl.report.figures.methods import looks_of, name_methods
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    GREY,
    ON_SCREEN,
    Look,
    Style,
    entitle,
    fitted_title,
    label_of_numbers,
    literal,
    style_axes,
)

# Largest number of problems that are drawn for each cost, and side by side.
MOST = 12
ACROSS = 3
PANEL_WIDTH = 3.1  # inches on the screen
PANEL_HEIGHT = 2.6
# Largest number of points that have their names beside them.
NAMED = 4
# Largest number of points that show their spread.
WITH_SPREAD = 200
# A cost with at most this many values is no scale, and each value has its tick.
TICKS = 4
# Where a name is tried, in points from its point and in order: the side and the height.
PLACES = [(x, y) for y in (7, -7, 18, -18, 29, -29, 40, -40) for x in (8, -8)]


def pareto(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw the table's statistic against its costs, one figure for each cost.

    Each panel is one problem: it fixes data, clients, model, rounds and the
    availability of clients. Its points are the choices that remain: the method, the
    server's data and the share of enforced rounds. Those problems are drawn in which the
    cost differs between choices and is known of all, the twelve whose means spread widest
    if there are more. There is none where nothing can be chosen.
    """
    numbers = study.numbers
    problems = find_problems(numbers.entries, numbers.runs, numbers.manifest)
    problems.sort(key=lambda p: float(np.ptp(p["mean"])), reverse=True)
    differing = {
        c: [p for p in problems if p[c].nunique() > 1 and p[c].notna().all()]
        for c in COSTS
    }
    return [
        _draw_cost(study, cost, some, style) for cost, some in differing.items() if some
    ]


def _draw_cost(
    study: Study, cost: str, problems: list[pd.DataFrame], style: Style
) -> Figure:
    """Draw the problems in which a cost differs, each in a panel."""
    # In the order of the sweep.
    shown = sorted(problems[:MOST], key=lambda problem: problem.index[0])
    wide = style.across(PANEL_WIDTH, min(ACROSS, len(shown)))
    tall = -(-len(shown) // wide)
    figure = style.figure(
        max(6.4, PANEL_WIDTH * wide + 0.4), style.room * (PANEL_HEIGHT * tall + 1.0)
    )
    grid = figure.subplots(tall, wide, squeeze=False)
    labels = study.numbers.manifest.labels()
    named = []
    for axes, problem in zip(grid.flat, shown, strict=False):
        named.append((axes, _draw_problem(axes, problem, cost, study, style)))
        shared = study.numbers.layout.shared([labels[i] for i in problem["run_id"]])
        title = fitted_title(words_of(shared), figure, wide, style)
        axes.set_title(title, loc="left")
        axes.set_xlabel(fitted_title(COSTS[cost], figure, wide, style))
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    table = study.numbers.manifest.table
    figure.supylabel(label_of_numbers(table))
    few = (
        f"shown are {len(shown)} of {len(problems)} problems, where choices differ most"
    )
    spread = "marks are means, and bars one standard deviation over seeds"
    if max(map(len, shown)) > WITH_SPREAD:
        spread = (
            f"marks are means, without bars where there are more than {WITH_SPREAD}"
        )
    notes = [
        few if len(shown) < len(problems) else "",
        spread,
        "a ring marks what no other is both cheaper and better than",
    ]
    entitle(figure, f"{table.statistic} against {COSTS[cost]}", notes, style)
    figure.set_label(f"The cost is {COSTS[cost]}. {figure.get_label()}")
    name_methods(figure, study.numbers.layout, style, is_line=False)
    # Names are placed where panels and legend leave room.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes, names in named:
        _place_names(axes, names)
        _leave_out_numbers(axes)
    return figure


def _draw_problem(
    axes: Axes, entries: pd.DataFrame, cost: str, study: Study, style: Style
) -> list[Annotation]:
    """Draw the choices of one problem, and mark and name those that no other beats."""
    style_axes(axes)
    manifest = study.numbers.manifest
    method = study.numbers.layout.method
    known_looks = looks_of(study.numbers.layout)
    methods = entries[f"label.{method}"].tolist() if method else [None] * len(entries)
    looks = [known_looks[own] for own in methods]
    x, y, spread = (entries[c].to_numpy(float) for c in (cost, "mean", "std"))
    if len(entries) > WITH_SPREAD:
        _draw_points(axes, x, y, looks)
    else:
        for i, look in enumerate(looks):
            axes.errorbar(
                x[i],
                y[i],
                spread[i],
                fmt=look.mark,
                color=look.colour,
                markerfacecolor=look.face,
                markersize=5,
                elinewidth=0.8,
                alpha=0.9,
            )
    best = front(x, y, manifest.sign > 0)
    axes.step(
        x[best], y[best], where="post", color=GREY, linewidth=1, linestyle=":", zorder=1
    )
    axes.plot(
        x[best], y[best], "o", color=GREY, markersize=10, fillstyle="none", zorder=1
    )
    axes.margins(x=0.12, y=0.12)
    some = x[x > 0]
    if cost == "samples" and len(some) and some.max() > 20 * some.min():
        axes.set_xscale("symlog", linthresh=float(some.min()))
    values = np.unique(x)
    if len(values) <= TICKS:
        axes.set_xticks(values, [f"{value:.4g}" for value in values])
        axes.minorticks_off()
    others = [
        a
        for a in manifest.axes
        if a != method and entries[f"label.{a}"].nunique(dropna=False) > 1
    ]
    if not others or len(best) > NAMED:
        return []
    rows = [entries.iloc[i] for i in best]
    names = [words_of({a: row[f"label.{a}"] for a in others}) for row in rows]
    return [
        axes.annotate(
            literal(name),
            (x[i], y[i]),
            (0, 0),
            textcoords="offset points",
            va="center",
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.5, "shrinkB": 4},
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5},
            # A long name leaves the panel its width.
            in_layout=False,
        )
        for i, name in zip(best, names, strict=True)
    ]


def _draw_points(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], looks: list[Look]
) -> None:
    """Draw very many points, without their spread."""
    for mark in dict.fromkeys(look.mark for look in looks):
        some = [i for i, own in enumerate(looks) if own.mark == mark]
        shades = [looks[i].colour for i in some]
        axes.scatter(
            x[some], y[some], s=12, c=shades, marker=mark, alpha=0.6, linewidths=0
        )


def _leave_out_numbers(axes: Axes) -> None:
    """Leave out each number of the horizontal axis that would touch one to its left."""
    end = -math.inf
    for number in axes.get_xticklabels():
        box = number.get_window_extent()
        number.set_visible(box.x0 > end + box.height / 3)
        end = box.x1 if number.get_visible() else end


def _place_names(axes: Axes, names: list[Annotation]) -> None:
    """Put each name where it is inside the panel and covers no other name and no point.

    Where points leave no place, it may cover some, but none that is named; a name that
    would cover another one is taken away.
    """
    panel = axes.get_window_extent()
    dot = 4 * axes.figure.dpi / 72
    named = axes.transData.transform([name.xy for name in names]).reshape(-1, 2)
    drawn = [line.get_xydata() for line in axes.get_lines()]
    points = axes.transData.transform(np.concatenate([*drawn]))
    taken = [Bbox([at - 2 * dot, at + 2 * dot]) for at in named]
    free = [Bbox([at - dot, at + dot]) for at in points]
    for name in names:
        tries = [(place, own) for own in ([*taken, *free], taken) for place in PLACES]
        for (x, y), others in tries:
            name.set(position=(x, y), ha="left" if x > 0 else "right")
            box = Text.get_window_extent(name)
            inside = panel.containsx(box.x0) and panel.containsx(box.x1)
            inside &= panel.containsy(box.y0) and panel.containsy(box.y1)
            if inside and not box.count_overlaps(others):
                taken.append(box)
                break
        else:
            name.remove()
