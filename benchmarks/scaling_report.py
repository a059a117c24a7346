"""The tables and the figure of `scaling`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from benchmarks.found import Found
from benchmarks.processes import median
from benchmarks.scaling import AXES
from benchmarks.tables import headline, in_digits, table
from raysafl.report.figures.style import (
    GREY,
    LETTERS,
    OKABE_ITO,
    new_figure,
    style_axes,
    to_png,
)

BLUE, RED, GREEN = OKABE_ITO[:3]
# One axis: origin, points, taken.
Measured = Mapping[str, Any]
Columns = dict[str, Sequence[str]]


def middle(axis: Measured, name: str) -> list[float]:
    """Return the median of each point's processes."""
    return [median([p[name] for p in point]) for point in axis["taken"]]


def spread(axis: Measured, name: str) -> list[list[float]]:
    """Return what each process of each point has measured, lowest first."""
    return [sorted(p[name] for p in point) for point in axis["taken"]]


def each(axis: Measured, of: Callable[[float, Any], float]) -> list[list[float]]:
    """Return `of`(seconds, point) of each process, lowest first."""
    pairs = zip(axis["points"], axis["taken"], strict=True)
    return [sorted(of(p["seconds"], point) for p in taken) for point, taken in pairs]


def rates(axis: Measured) -> list[list[float]]:
    """Return rounds a second."""
    return each(axis, lambda seconds, _: 1 / seconds)


def slopes(axis: Measured, name: str = "seconds") -> list[float]:
    """Return how much of something each trial more than the first point's takes."""
    x = axis["points"]
    y = middle(axis, name)
    return [(s - y[0]) / (n - x[0]) for n, s in zip(x[1:], y[1:], strict=True)]


# The tables.


def span(rows: Sequence[Sequence[float]]) -> list[str]:
    """Write medians (lowest-highest)."""
    ends = [
        f" ({in_digits(r[0])}-{in_digits(r[-1])})" if len(r) > 1 else "" for r in rows
    ]
    return [in_digits(median(r)) + end for r, end in zip(rows, ends, strict=True)]


def digits(values: Sequence[float]) -> list[str]:
    """Write each number."""
    return [in_digits(value) for value in values]


def columns(name: str, axis: Measured) -> Columns:
    """Return the columns of one axis's table."""
    points = [f"{p:,}" if isinstance(p, int) else str(p) for p in axis["points"]]
    first: Columns = {HEADS.get(name, name): points}
    if name == "actors":
        pairs = [point.split(", ") for point in points]
        first = {"model": [m for m, _ in pairs], "actors": [n for _, n in pairs]}
    elif name == "model":
        first["parameters"] = [f"{p:,.0f}" for p in middle(axis, "parameters")]
    if name in OF_SWEEPS:
        driver = {"memory of the driver, MiB": digits(middle(axis, "memory"))}
        return first | OF_SWEEPS[name](axis) | driver
    speed: Columns = {
        "ms a round": span(each(axis, lambda s, _: 1e3 * s)),
        "rounds/s": span(rates(axis)),
    }
    return first | speed | OF_ROUNDS[name](axis)


def of_trials(axis: Measured) -> Columns:
    return {
        "whole sweep, s": span(spread(axis, "seconds")),
        "s per trial": span(each(axis, lambda s, n: s / n)),
        "s per further trial": ["", *digits(slopes(axis))],
        "files": digits(middle(axis, "files")),
        "kB of files": digits([n / 1e3 for n in middle(axis, "bytes")]),
    }


def of_reports(axis: Measured) -> Columns:
    used = [1e3 * s for s in slopes(axis, "processor")]
    return {
        "whole sweep, s": span(spread(axis, "seconds")),
        "driver's processor time, s": digits(middle(axis, "processor")),
        "ms of it per further report": ["", *digits(used)],
    }


def of_replicates(axis: Measured) -> Columns:
    one = middle(axis, "seconds")[0]
    return {"times one": span(each(axis, lambda s, _: s / one))}


def of_packs(axis: Measured) -> Columns:
    return {
        "ms a run and round": span(each(axis, lambda s, n: 1e3 * s / n)),
        "memory of the coordinator, MiB": digits(middle(axis, "memory")),
        "memory of the actor, MiB": digits(middle(axis, "actor")),
    }


def of_packs_at_once(axis: Measured) -> Columns:
    size = axis["taken"][0][0]["size"]
    each_run = each(axis, lambda s, n: 1e3 * s / (n * size))
    return {"ms a run and round, all together": span(each_run)}


def of_engines(axis: Measured) -> Columns:
    return {"engine": [point[0]["engine"] for point in axis["taken"]]}


HEADS = {"packs": "runs of a pack", "at-once": "packs at once"}
OF_SWEEPS = {"trials": of_trials, "reports": of_reports}
OF_ROUNDS: dict[str, Callable[[Measured], Columns]] = {
    "clients": lambda axis: {"client updates/s": span(each(axis, lambda s, m: m / s))},
    "population": lambda axis: {"memory, MiB": digits(middle(axis, "memory"))},
    "model": of_engines,
    "replicates": of_replicates,
    "actors": of_engines,
    "packs": of_packs,
    "at-once": of_packs_at_once,
}


def scaling(found: Found) -> str:
    """Write what `scaling` has found: a table for each axis, with where it was measured."""
    parts = []
    for name in AXES:
        if name not in found.measures:
            continue
        axis = found.measures[name]
        cells = columns(name, axis)
        parts += [
            f"## {PANELS[name][0]}",
            f"{AXES[name].told}.",
            table(list(cells), list(zip(*cells.values(), strict=True))),
            f"{headline(axis['origin'])}.",
        ]
    return "\n\n".join(parts)


# The figure.


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
    middle = [median(row) for row in rows]
    style: Any = {"color": colour, "markersize": 4, "linewidth": 1.5}
    axes.plot(x, middle, "o-", label=name or None, **style)
    low, high = ([row[end] for row in rows] for end in (0, -1))
    axes.vlines(x, low, high, color=colour, linewidth=1)


def guide(axes: Axes, x: Sequence[float], y: Sequence[float], name: str) -> None:
    """What would be seen if nothing were shared."""
    axes.plot(x, y, "--", color=GREY, linewidth=1, label=name, zorder=1)
    axes.legend(fontsize=LETTERS - 1, frameon=False)


def clients(panel: SubFigure, axis: Measured) -> None:
    axes, x, rows = panel.subplots(), axis["points"], rates(axis)
    axes.loglog()
    line(axes, x, rows, BLUE)
    first = median(rows[0]) * x[0]
    guide(axes, x, [first / m for m in x], "same time per client")
    label(axes, "clients a round", "rounds/s")


def population(panel: SubFigure, axis: Measured) -> None:
    speed, memory = panel.subplots(2, 1, sharex=True)
    line(speed, axis["points"], rates(axis), BLUE)
    line(memory, axis["points"], spread(axis, "memory"), RED)
    memory.set_xscale("log")
    for axes, y in ((speed, "rounds/s"), (memory, "memory, MiB")):
        axes.set_ylim(0, 1.25 * axes.get_ylim()[1])
        label(axes, "clients there are (10 come)" if axes is memory else "", y)


def model(panel: SubFigure, axis: Measured) -> None:
    axes, x, rows = panel.subplots(), middle(axis, "parameters"), rates(axis)
    axes.loglog()
    y = [median(row) for row in rows]
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
    one = middle(axis, "seconds")[0]
    axes.loglog(base=2)
    line(axes, x, each(axis, lambda seconds, _: seconds / one), BLUE)
    guide(axes, x, x, "one after the other")
    label(axes, "replicates in lock-step", "time of a round (one replicate: 1)", base=2)


def trials(panel: SubFigure, axis: Measured) -> None:
    axes, x = panel.subplots(), axis["points"]
    axes.loglog()
    whole = each(axis, lambda seconds, n: seconds / n)
    line(axes, x, whole, BLUE, "whole sweep / trials")
    line(axes, x[1:], [[s] for s in slopes(axis)], RED, "each further trial")
    axes.legend(fontsize=LETTERS - 1, frameon=False)
    label(axes, "trivial trials in a sweep", "s per trial")


def actors(panel: SubFigure, axis: Measured) -> None:
    axes = panel.subplots()
    y = {p: median(row) for p, row in zip(axis["points"], rates(axis), strict=True)}
    models = list(dict.fromkeys(point.split(", ")[0] for point in y))
    kinds = {"0": ("no Ray", GREY), "1": ("1 actor", BLUE), "2": ("2 actors", RED)}
    for place, (count, (name, colour)) in enumerate(kinds.items()):
        at = [i for i, kind in enumerate(models) if f"{kind}, {count}" in y]
        speed = [y[f"{models[i]}, {count}"] for i in at]
        height = [s / y[f"{models[i]}, 0"] for i, s in zip(at, speed, strict=True)]
        where = [i + 0.27 * (place - 1) for i in at]
        bars = axes.bar(where, height, 0.25, color=colour, label=name)
        told = [f"{in_digits(s)}/s" for s in speed]
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
        line(memory, x, spread(axis, name), colour, told)
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
    one = median(rows[0])
    guide(axes, x, [one * n for n in x], "a core for each")
    label(axes, "packs at once", "rounds of runs/s")
    axes.set_xticks(x)


def reports(panel: SubFigure, axis: Measured) -> None:
    axes, x = panel.subplots(), axis["points"]
    axes.loglog()
    line(axes, x, spread(axis, "processor"), BLUE)
    label(axes, "reports to the driver", "driver's processor time, s")


PANELS: dict[str, tuple[str, Callable[[SubFigure, Measured], None]]] = {
    "clients": ("Clients a round", clients),
    "population": ("Population", population),
    "model": ("Model size", model),
    "replicates": ("Replicates", replicates),
    "trials": ("Trials", trials),
    "actors": ("Client actors", actors),
    "packs": ("Packs", packs),
    "at-once": ("Packs at once", packs_at_once),
    "reports": ("Reports to the driver", reports),
}


def figure(measured: Mapping[str, Measured]) -> bytes:
    """Draw a panel for each axis; one that was not measured says so."""
    whole = new_figure(11, 9.9)
    panels = np.ravel(np.asarray(whole.subfigures(3, 3)))
    for letter, panel, name in zip("abcdefghi", panels, PANELS, strict=True):
        title, draw = PANELS[name]
        big = {"fontsize": LETTERS + 1, "fontweight": "bold"}
        panel.suptitle(f"{letter}  {title}", x=0.02, ha="left", **big)
        if name in measured:
            draw(panel, measured[name])
        else:
            small = {"ha": "center", "color": GREY, "fontsize": LETTERS}
            panel.text(0.5, 0.5, "not measured", **small)
    return to_png(whole)
