"""SAFARI, theorem 1, as an experiment. (This is a script; it defines no sweep.)

Source: Yang et al., docs/papers.md#safari, theorem 1.

Run it from the repository's root; it takes seconds:

    python -m experiments.safari.theorem1 [--out DIR] [--trials N]

There are M = 10 clients with 100 samples each, of which only m = 5 ever take part
(omega = 0.5). The theorem says: whatever the learner is, its error exceeds (1 - omega)
/ 8 = 0.0625 with a probability above 1/20. The table shows how often that happens with
n_T = 0, 1, 2, ... samples at the server, under the worse of two targets. The figure
shows the same frequencies, and beside them the quantiles of the error when 20 rare
points share the probability mass that only absent clients see.
`experiments.safari.induced_distributions` holds the construction, and says how its printed
form was read.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.safari.induced_distributions import (
    CONSISTENT,
    LEARNERS,
    TheoremOutcome,
    World,
    experiment,
    lower,
)
from experiments.theorems.output import publish
from raysafl.report.figures.style import LETTERS, colours, new_figure, style_axes

SERVER_SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200)  # n_T with one rare point
SERVER_SIZES_MANY = (0, 10, 20, 50, 100, 200, 500, 1000)  # n_T with 20 rare points
MARKS = "osD^vX"
HEAD = ["learner", *(f"n_T={n}" for n in SERVER_SIZES), "at n_T=0, 99 % sure"]


def rows(found: Sequence[TheoremOutcome]) -> list[list[str]]:
    """Return how often each learner's error exceeds (1 - omega) / 8, for each n_T."""
    of = {name: [f for f in found if f.learner == name] for name in LEARNERS}
    return [
        [name, *(f"{f.frequency:.3f}" for f in row), f"> {lower(row[0]):.3f}"]
        for name, row in of.items()
    ]


def draw(theorem: Sequence[TheoremOutcome], many: Sequence[TheoremOutcome]) -> Figure:
    """Draw frequencies for one rare point, and the error's quantiles for 20."""
    figure = new_figure(9, 3.9)
    left, right = figure.subplots(1, 2)
    for i, (learner, colour) in enumerate(
        zip(LEARNERS, colours(len(LEARNERS)), strict=True)
    ):
        style = {"color": colour, "marker": MARKS[i], "markersize": 4, "linewidth": 1.2}
        style["linestyle"] = "-" if learner in CONSISTENT else ":"
        aside = (i - 2.5) * 0.11  # equal curves stay visible side by side
        row = [f for f in theorem if f.learner == learner]
        at = [x + aside for x in range(len(row))]
        left.plot(at, [f.frequency for f in row], label=learner, **style)
        if learner == "random guess":
            continue
        row = [f for f in many if f.learner == learner]
        low, middle, high = np.transpose([f.quantiles() for f in row])
        at = [x + aside for x in range(len(row))]
        right.errorbar(
            at, middle, (middle - low, high - middle), elinewidth=0.8, **style
        )
    low, middle, high = next(f for f in many if f.learner == "random guess").quantiles()
    finish(
        left, SERVER_SIZES, 1 / 20, "1/20 (theorem 1)", "frequency of error > (1 - ω)/8"
    )
    finish(
        right,
        SERVER_SIZES_MANY,
        theorem[0].world.eps,
        "(1 - ω)/8",
        "error on P: median, 10 to 90 %",
    )
    left.set_title("One rare point: the theorem's construction", fontsize=LETTERS)
    right.set_title(
        f"20 rare points (random guess, {low:.2f} to {high:.2f}, is off the scale)",
        fontsize=LETTERS,
    )
    figure.legend(
        loc="outside lower center", ncols=6, fontsize=LETTERS - 1, frameon=False
    )
    return figure


def finish(
    axes: Axes, sizes: Sequence[int], level: float, text: str, label: str
) -> None:
    """Label the axes, one tick per server size, and draw a dashed line at `level`."""
    axes.axhline(level, color="black", linewidth=1, linestyle="--")
    axes.annotate(
        text,
        (len(sizes) - 0.6, level),
        (0, 3),
        textcoords="offset points",
        ha="right",
        fontsize=LETTERS - 2,
    )
    axes.set_xticks(range(len(sizes)), [str(n) for n in sizes])
    axes.set_xlabel("samples at the server, n_T (not to scale)", fontsize=LETTERS)
    axes.set_ylabel(label, fontsize=LETTERS)
    axes.set_ylim(bottom=0 - 0.03 * axes.get_ylim()[1])
    style_axes(axes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the experiment, print the table, and write it and the figure."""
    parser = argparse.ArgumentParser(description="SAFARI's theorem 1 as an experiment")
    parser.add_argument("--out", type=Path, default=Path("results/safari_theorem1"))
    parser.add_argument("--trials", type=int, default=2000)
    options = parser.parse_args(arguments)
    if options.trials < 1:
        parser.error("--trials must be at least 1")
    theorem = experiment([World(server=n) for n in SERVER_SIZES], options.trials)
    many = experiment(
        [World(server=n, rare=20) for n in SERVER_SIZES_MANY], options.trials
    )
    title = (
        f"Frequency of error > (1 - omega)/8, {options.trials} trials (theorem: > 0.05)"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    publish(
        options.out,
        {title: [HEAD, *rows(theorem)]},
        draw(theorem, many),
        "safari_theorem1",
    )


if __name__ == "__main__":
    main()
