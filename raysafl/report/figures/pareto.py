"""The table's statistic against cost: server samples, enforced rounds and traffic."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from numpy.typing import NDArray

from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.pareto import COSTS, Problem, find_problems, front
from raysafl.report.figures.methods import Look, marks_of, name_marks
from raysafl.report.figures.style import (
    GREY,
    LETTERS,
    literal,
    new_figure,
    style_axes,
    to_png,
    wrapped,
)
from raysafl.storage.manifest import Manifest, label_text

# Number of problems that are drawn for each cost.
ACROSS = 3
# Largest number of points that have their names beside them.
NAMED = 4
# Largest number of points that show their spread.
WITH_SPREAD = 200


def pareto(
    entries: pd.DataFrame, runs: pd.DataFrame, manifest: Manifest, layout: Layout
) -> bytes | None:
    """Draw the table's statistic against its costs, with a row of panels for each cost.

    Each panel is one problem: it fixes data, clients, model, rounds and the
    availability of clients. Its points are the choices that remain: the method, the
    server's data and the share of enforced rounds. For each cost, those three problems
    are drawn in which the cost differs between choices and the means spread widest.

    Args:
        entries: from `raysafl.report.analysis.entries.aggregate`.
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        layout: the layout of its axes.

    Returns:
        A PNG file; None if there is nothing to choose between.
    """
    problems = find_problems(entries, runs, manifest, layout)
    problems.sort(key=lambda p: float(np.ptp(p.entries["mean"])), reverse=True)
    shown = {c: [p for p in problems if p.entries[c].nunique() > 1] for c in COSTS}
    most = max(map(len, shown.values()))
    lines = [(cost, part[:ACROSS]) for cost, part in shown.items() if part]
    if not lines:
        return None

    wide = max(len(part) for _, part in lines)
    figure = new_figure(max(6.4, 3.4 * wide + 0.4), 2.6 * len(lines) + 1.3)
    grid = figure.subplots(len(lines), wide, squeeze=False)
    for row, (cost, part) in zip(grid, lines, strict=True):
        for axes, problem in zip(row, part, strict=False):
            _draw_problem(axes, problem, cost, manifest, layout)
            axes.set_title(wrapped(problem.name, 3.2), fontsize=LETTERS, loc="left")
            axes.set_xlabel(COSTS[cost], fontsize=LETTERS)
        for axes in row[len(part) :]:
            axes.set_visible(False)

    table = manifest.table
    unit = f" ({table.unit})" if table.unit else ""
    figure.supylabel(literal(f"{table.statistic}{unit}"), fontsize=LETTERS + 1)
    notes = (
        [f"{wide} of {most} problems, where choices differ most"] if most > wide else []
    )
    drawn = [problem.entries for _, part in lines for problem in part]
    spread = "mean ± std over replicates"
    if max(map(len, drawn)) > WITH_SPREAD:
        spread = f"mean, without std if there are more than {WITH_SPREAD} points"
    notes += [spread, "ringed: no other is both cheaper and better"]
    title = f"{table.statistic} against what it costs: {'; '.join(notes)}"
    figure.suptitle(wrapped(title, figure.get_figwidth()), fontsize=LETTERS + 1)
    name_marks(figure, layout)
    return to_png(figure)


def _draw_problem(
    axes: Axes, problem: Problem, cost: str, manifest: Manifest, layout: Layout
) -> None:
    """Draw the choices of one problem as points, and mark those that no other beats."""
    style_axes(axes)
    method = layout.method
    entries = problem.entries
    look = marks_of(layout)
    looks = [look[value] for value in entries[f"label.{method}"]]
    x, y, spread = (entries[c].to_numpy(float) for c in (cost, "mean", "std"))
    if len(entries) > WITH_SPREAD:
        _draw_points(axes, x, y, looks)
    else:
        for i, (colour, mark) in enumerate(looks):
            axes.errorbar(
                x[i],
                y[i],
                spread[i],
                fmt=mark,
                color=colour,
                markersize=5,
                elinewidth=0.8,
                alpha=0.9,
            )
    known = manifest.statistic(manifest.table.statistic)
    best = front(x, y, known is None or known.higher_is_better)
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
    others = [
        a
        for a in manifest.axes
        if a != method and entries[f"label.{a}"].nunique(dropna=False) > 1
    ]
    if others and len(best) <= NAMED:
        _name_points(
            axes, x[best], y[best], [_choice(entries.iloc[i], others) for i in best]
        )


def _draw_points(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], looks: list[Look]
) -> None:
    """Draw very many points, without their spread."""
    for mark in dict.fromkeys(mark for _, mark in looks):
        some = [i for i, (_, own) in enumerate(looks) if own == mark]
        shades = [looks[i][0] for i in some]
        axes.scatter(
            x[some], y[some], s=12, c=shades, marker=mark, alpha=0.6, linewidths=0
        )


def _choice(entry: Any, others: list[str]) -> str:
    """Write the labels of a point: words as they are, numbers with their axis."""
    values = {axis: entry[f"label.{axis}"] for axis in others}
    return ", ".join(
        v if isinstance(v, str) else f"{a} = {label_text(v)}" for a, v in values.items()
    )


def _name_points(
    axes: Axes, x: NDArray[np.float64], y: NDArray[np.float64], names: list[str]
) -> None:
    """Write names at points, alternately below and above, towards the middle."""
    middle = sum(axes.get_xlim()) / 2
    for i, (at, high, name) in enumerate(zip(x, y, names, strict=True)):
        left = at > middle
        axes.annotate(
            literal(name),
            (at, high),
            (-8 if left else 8, 5 if i % 2 else -10),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=LETTERS - 2,
            bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5},
        )
