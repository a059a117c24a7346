"""The table and the figure of scaling.py: dictionaries in, Markdown and PNG out."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from raysafl.report.figures.style import (
    GREY,
    LETTERS,
    OKABE_ITO,
    new_figure,
    style_axes,
    to_png,
)

BLUE, RED, GREEN = OKABE_ITO[:3]
Measured = Mapping[str, Any]  # one axis: machine, points, taken


def median(axis: Measured, name: str) -> list[float]:
    """Of each point's processes."""
    return [statistics.median(p[name] for p in point) for point in axis["taken"]]


def each(axis: Measured, of: Callable[[float, Any], float]) -> list[list[float]]:
    """`of`(seconds, point) of each process, lowest first."""
    pairs = zip(axis["points"], axis["taken"], strict=True)
    return [sorted(of(p["seconds"], point) for p in taken) for point, taken in pairs]


def rates(axis: Measured) -> list[list[float]]:
    """Rounds a second."""
    return each(axis, lambda seconds, _: 1 / seconds)


def further(axis: Measured) -> list[float]:
    """Seconds of each trial more than the first point's."""
    return slopes(axis, "seconds")


def slopes(axis: Measured, name: str) -> list[float]:
    """How much of something each trial (or report) more than the first point's takes."""
    x, y = axis["points"], median(axis, name)
    return [(s - y[0]) / (n - x[0]) for n, s in zip(x[1:], y[1:], strict=True)]


# --- table
# -------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Three digits, and never a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def span(rows: Sequence[Sequence[float]]) -> list[str]:
    """Median (lowest-highest)."""
    ends = [f" ({number(r[0])}-{number(r[-1])})" if len(r) > 1 else "" for r in rows]
    return [
        number(statistics.median(r)) + end for r, end in zip(rows, ends, strict=True)
    ]


DRIVER = "memory of the driver, MiB"
HEADS = {"packs": "runs of a pack", "at-once": "packs at once"}


def of_trials(axis: Measured) -> dict[str, Sequence[str]]:
    cells: dict[str, Sequence[str]] = {
        "whole sweep, s": span(each(axis, lambda s, _: s)),
        "s per trial": span(each(axis, lambda s, n: s / n)),
        "s per further trial": ["", *map(number, further(axis))],
    }
    if "files" in axis["taken"][0][0]:  # measurements of earlier versions have none
        cells["files"] = [number(n) for n in median(axis, "files")]
        cells["kB of files"] = [number(n / 1e3) for n in median(axis, "bytes")]
    return cells


def of_reports(axis: Measured) -> dict[str, Sequence[str]]:
    used = [1e3 * s for s in slopes(axis, "processor")]
    return {
        "whole sweep, s": span(each(axis, lambda s, _: s)),
        "driver's processor time, s": [number(s) for s in median(axis, "processor")],
        "ms of it per further report": ["", *map(number, used)],
    }


def of_replicates(axis: Measured, _: Sequence[str]) -> dict[str, Sequence[str]]:
    one = statistics.median(p["seconds"] for p in axis["taken"][0])
    return {"times one": span(each(axis, lambda s, _: s / one))}


def of_packs(axis: Measured, memory: Sequence[str]) -> dict[str, Sequence[str]]:
    return {
        "ms a run and round": span(each(axis, lambda s, n: 1e3 * s / n)),
        "memory of the coordinator, MiB": memory,
        "memory of the actor, MiB": [number(m) for m in median(axis, "actor")],
    }


def of_packs_at_once(axis: Measured, _: Sequence[str]) -> dict[str, Sequence[str]]:
    size = axis["taken"][0][0]["size"]
    each_run = each(axis, lambda s, n: 1e3 * s / (n * size))
    return {"ms a run and round, all together": span(each_run)}


OF_DRIVER = {"trials": of_trials, "reports": of_reports}
OF_ROUNDS: dict[str, Callable[[Measured, Sequence[str]], dict[str, Sequence[str]]]] = {
    "clients": lambda axis, _: {
        "client updates/s": span(each(axis, lambda s, m: m / s))
    },
    "population": lambda _, memory: {"memory, MiB": memory},
    "replicates": of_replicates,
    "packs": of_packs,
    "at-once": of_packs_at_once,
}


def columns(name: str, axis: Measured) -> dict[str, Sequence[str]]:
    """The columns of one axis's table."""
    points = [f"{p:,}" if isinstance(p, int) else str(p) for p in axis["points"]]
    memory = [number(m) for m in median(axis, "memory")]
    if name in OF_DRIVER:
        return {name: points} | OF_DRIVER[name](axis) | {DRIVER: memory}
    speed: dict[str, Sequence[str]] = {
        "ms a round": span(each(axis, lambda s, _: 1e3 * s)),
        "rounds/s": span(rates(axis)),
    }
    if name in OF_ROUNDS:
        return {HEADS.get(name, name): points} | speed | OF_ROUNDS[name](axis, memory)
    engines = [point[0]["engine"] for point in axis["taken"]]
    if name == "model":
        size = [f"{p:,.0f}" for p in median(axis, "parameters")]
        return {name: points, "parameters": size} | speed | {"engine": engines}
    models, actors = zip(*(point.split(", ") for point in points), strict=True)
    return {"model": models, "actors": actors} | speed | {"engine": engines}


def markdown(cells: Mapping[str, Sequence[str]]) -> str:
    rows = [
        list(cells),
        ["---"] * len(cells),
        *map(list, zip(*cells.values(), strict=True)),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table(measured: Mapping[str, Measured], told: Mapping[str, str]) -> str:
    """One table for each axis, with where it was measured."""
    parts = [
        "# How raysafl scales",
        "Made by `python benchmarks/scaling.py`; do not edit. Clients hold 60 MNIST images each "
        "(drawn from the training set, `Overlapping`) and take one epoch in batches of 20; no "
        "evaluation. Median (lowest-highest) over processes, each with one torch thread.",
        "![Measured curves](scaling.png)",
    ]
    for name, axis in measured.items():
        about = ", ".join(f"{k} {v}" for k, v in axis["machine"].items() if v != "")
        parts += [
            f"## {TITLES[name][3:]}",
            f"{told[name]}.",
            markdown(columns(name, axis)),
        ]
        parts.append(f"Processes a point: {len(axis['taken'][0])}. Made with: {about}.")
    return "\n\n".join(parts) + "\n"


# --- figure
# ------------------------------------------------------------------------------------


def short(value: float) -> str:
    """1k, 100k, 1M."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def label(axes: Axes, x: str, y: str, base: int = 10) -> None:
    """Names of the axes; short numbers, and enough of them, where they are logarithmic."""
    style_axes(axes)
    axes.set_xlabel(x, fontsize=LETTERS)
    axes.set_ylabel(y, fontsize=LETTERS)
    for side in (axes.xaxis, axes.yaxis):
        if side.get_scale() == "log":
            low, high = side.get_view_interval()
            dense = (1.0, 2.0, 5.0) if base == 10 and high / low < 500 else (1.0,)
            side.set_major_locator(LogLocator(base, dense))
            side.set_minor_locator(NullLocator())
        side.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def line(
    axes: Axes,
    x: Sequence[float],
    rows: Sequence[Sequence[float]],
    colour: str,
    name: str = "",
) -> None:
    """Medians, and how far the processes lie apart."""
    middle = [statistics.median(row) for row in rows]
    axes.plot(
        x, middle, "o-", color=colour, markersize=4, linewidth=1.5, label=name or None
    )
    axes.vlines(
        x,
        [row[0] for row in rows],
        [row[-1] for row in rows],
        color=colour,
        linewidth=1,
    )


def guide(axes: Axes, x: Sequence[float], y: Sequence[float], name: str) -> None:
    """What would be seen if nothing were shared."""
    axes.plot(x, y, "--", color=GREY, linewidth=1, label=name, zorder=1)
    axes.legend(fontsize=LETTERS - 1, frameon=False)


def clients(panel: SubFigure, axis: Measured) -> None:
    axes, x, rows = panel.subplots(), axis["points"], rates(axis)
    axes.loglog()
    line(axes, x, rows, BLUE)
    first = statistics.median(rows[0]) * x[0]
    guide(axes, x, [first / m for m in x], "same time per client")
    label(axes, "clients a round", "rounds/s")


def population(panel: SubFigure, axis: Measured) -> None:
    speed, memory = panel.subplots(2, 1, sharex=True)
    line(speed, axis["points"], rates(axis), BLUE)
    resident = [sorted(p["memory"] for p in point) for point in axis["taken"]]
    line(memory, axis["points"], resident, RED)
    memory.set_xscale("log")
    for axes, y in ((speed, "rounds/s"), (memory, "memory, MiB")):
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        label(axes, "clients there are (10 come)" if axes is memory else "", y)


def model(panel: SubFigure, axis: Measured) -> None:
    axes, x, rows = panel.subplots(), median(axis, "parameters"), rates(axis)
    axes.loglog()
    y = [statistics.median(row) for row in rows]
    engines = [point[0]["engine"] for point in axis["taken"]]
    for engine, colour in zip(dict.fromkeys(engines), OKABE_ITO, strict=False):
        at = [i for i, e in enumerate(engines) if e == engine]
        axes.plot(
            [x[i] for i in at], [y[i] for i in at], "o", color=colour, label=engine
        )
    for name, a, b in zip(axis["points"], x, y, strict=True):
        near = {"xytext": (-5, -3), "ha": "right"} if a > 5e5 else {"xytext": (5, 4)}
        axes.annotate(
            name, (a, b), textcoords="offset points", fontsize=LETTERS - 2, **near
        )
    axes.margins(0.12)
    axes.legend(
        fontsize=LETTERS - 1, frameon=False, title="engine", title_fontsize=LETTERS - 1
    )
    label(axes, "parameters", "rounds/s")


def replicates(panel: SubFigure, axis: Measured) -> None:
    axes, x = panel.subplots(), axis["points"]
    one = statistics.median(p["seconds"] for p in axis["taken"][0])
    axes.loglog(base=2)
    line(axes, x, each(axis, lambda seconds, _: seconds / one), BLUE)
    guide(axes, x, x, "one after the other")
    label(axes, "replicates in lock-step", "time of a round (one replicate: 1)", base=2)


def trials(panel: SubFigure, axis: Measured) -> None:
    axes, x = panel.subplots(), axis["points"]
    axes.loglog()
    line(
        axes,
        x,
        each(axis, lambda seconds, n: seconds / n),
        BLUE,
        "whole sweep / trials",
    )
    line(axes, x[1:], [[s] for s in further(axis)], RED, "each further trial")
    axes.legend(fontsize=LETTERS - 1, frameon=False)
    label(axes, "trivial trials in a sweep", "s per trial")


def actors(panel: SubFigure, axis: Measured) -> None:
    axes = panel.subplots()
    y = {
        p: statistics.median(row)
        for p, row in zip(axis["points"], rates(axis), strict=True)
    }
    models = list(dict.fromkeys(point.split(", ")[0] for point in y))
    kinds = {"0": ("no Ray", GREY), "1": ("1 actor", BLUE), "2": ("2 actors", RED)}
    for place, (count, (name, colour)) in enumerate(kinds.items()):
        at = [i for i, kind in enumerate(models) if f"{kind}, {count}" in y]
        speed = [y[f"{models[i]}, {count}"] for i in at]
        height = [s / y[f"{models[i]}, 0"] for i, s in zip(at, speed, strict=True)]
        where = [i + 0.27 * (place - 1) for i in at]
        bars = axes.bar(where, height, 0.25, color=colour, label=name)
        told = [f"{number(s)}/s" for s in speed]
        axes.bar_label(bars, told, fontsize=LETTERS - 2, padding=1)
    axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
    axes.legend(fontsize=LETTERS - 1, frameon=False, ncols=3, loc="upper center")
    label(axes, "model (100 clients a round)", "rounds/s (no Ray: 1)")
    axes.set_xticks(range(len(models)), models)


def packs(panel: SubFigure, axis: Measured) -> None:
    speed, memory = panel.subplots(2, 1, sharex=True)
    x = axis["points"]
    each_run = each(axis, lambda seconds, n: 1e3 * seconds / n)
    line(speed, x, each_run, BLUE)
    for name, told, colour in (
        ("memory", "coordinator", RED),
        ("actor", "actor", GREEN),
    ):
        rows = [sorted(p[name] for p in point) for point in axis["taken"]]
        line(memory, x, rows, colour, told)
    memory.set_xscale("log", base=2)
    memory.legend(fontsize=LETTERS - 1, frameon=False, ncols=2)
    for axes, y in ((speed, "ms a run and round"), (memory, "memory, MiB")):
        axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
        label(axes, "runs of a pack" if axes is memory else "", y, base=2)


def packs_at_once(panel: SubFigure, axis: Measured) -> None:
    axes, x = panel.subplots(), axis["points"]
    size = axis["taken"][0][0]["size"]
    rows = each(axis, lambda seconds, n: n * size / seconds)
    line(axes, x, rows, BLUE)
    one = statistics.median(rows[0])
    guide(axes, x, [one * n for n in x], "a core for each")
    label(axes, "packs at once", "rounds of runs/s")
    axes.set_xticks(x)


def reports(panel: SubFigure, axis: Measured) -> None:
    axes, x = panel.subplots(), axis["points"]
    axes.loglog()
    rows = [sorted(p["processor"] for p in point) for point in axis["taken"]]
    line(axes, x, rows, BLUE)
    label(axes, "reports to the driver", "driver's processor time, s")


PANELS: dict[str, Callable[[SubFigure, Measured], None]] = {
    "clients": clients,
    "population": population,
    "model": model,
    "replicates": replicates,
    "trials": trials,
    "actors": actors,
    "packs": packs,
    "at-once": packs_at_once,
    "reports": reports,
}
TITLES = {
    "clients": "a  Clients a round",
    "population": "b  Population",
    "model": "c  Model size",
    "replicates": "d  Replicates",
    "trials": "e  Trials",
    "actors": "f  Client actors",
    "packs": "g  Packs",
    "at-once": "h  Packs at once",
    "reports": "i  Reports to the driver",
}


def figure(measured: Mapping[str, Measured]) -> bytes:
    """A panel for each axis; one that was not measured says so."""
    whole = new_figure(11, 9.9)
    for panel, (name, draw) in zip(
        np.ravel(whole.subfigures(3, 3)), PANELS.items(), strict=True
    ):
        panel.suptitle(
            TITLES[name], fontsize=LETTERS + 1, fontweight="bold", x=0.02, ha="left"
        )
        if name in measured:
            draw(panel, measured[name])
        else:
            panel.text(
                0.5, 0.5, "not measured", ha="center", color=GREY, fontsize=LETTERS
            )
    return to_png(whole)
