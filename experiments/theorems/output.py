"""What scripts without a sweep share: options, tables, figures, and slopes with intervals."""

import argparse
from pathlib import Path

import numpy as np
from scipy import stats

from raysafl.report.figures.style import (
    LETTERS,
    new_figure,
    style_axes,
    to_png,
)
from raysafl.report.pages.document import pipe_table


def options(name, arguments=None):
    """Read `--out` and `--quick` of a script, and make the folder."""
    parser = argparse.ArgumentParser(description=f"theorems as experiments: {name}")
    parser.add_argument("--out", type=Path, default=Path(f"results/theorems_{name}"))
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to see that all of it runs"
    )
    found = parser.parse_args(arguments)
    found.out.mkdir(parents=True, exist_ok=True)
    return found


def publish(out, tables, figure, name):
    """Print tables and write them and a figure.

    Args:
        out: the folder.
        tables: by title, the rows of text, of which the first is the head.
        figure: the figure.
        name: the name of the figure's file without its ending.
    """
    text = "\n\n".join(
        f"{title}\n\n{pipe_table(rows[0], rows[1:], 1)}"
        for title, rows in tables.items()
    )
    print(text)
    (out / "table.md").write_text(text + "\n")
    picture = out / f"{name}.png"
    picture.write_bytes(to_png(figure))
    print(f"\nWritten: {picture} and table.md")


def panels(count, width=9.0, height=3.8):
    """Return a figure and `count` panels side by side."""
    figure = new_figure(width, height)
    axes = figure.subplots(1, count)
    for one in axes:
        style_axes(one)
    return figure, axes


def label(axes, x, y, title):
    """Name a panel and its axes, and show its legend."""
    axes.set_xlabel(x, fontsize=LETTERS)
    axes.set_ylabel(y, fontsize=LETTERS)
    axes.set_title(title, fontsize=LETTERS)
    axes.legend(fontsize=LETTERS - 2, frameon=False)


def ticks(axes, x):
    """Mark these values, and no others, on a logarithmic x axis."""
    axes.set_xticks(x, [f"{v:g}" for v in x])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.tick_params(axis="y", which="minor", labelsize=LETTERS - 2)


def slope(x, values_XR):
    """Return the slope of log(mean over R) against log(x), and half its 95 % interval.

    The interval is the jackknife's: it leaves out one replicate at a time.

    Args:
        x: [X] positive numbers.
        values_XR: [X, R] positive values of R independent replicates.
    """
    count = values_XR.shape[1]
    means = [values_XR.mean(1)]
    means += [np.delete(values_XR, r, 1).mean(1) for r in range(count)]
    whole, *without = np.polyfit(np.log(x), np.log(np.transpose(means)), 1)[0]
    error = (count - 1) ** 0.5 * np.std(without)
    return whole, stats.t.ppf(0.975, count - 1) * error


def with_interval(found):
    """Write a slope as "-0.50 ± 0.02"."""
    return f"{found[0]:.2f} ± {found[1]:.2f}"
