"""Pictures of a federation: who holds which labels, and who came when. Arrays in, PNG out."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.figures.style import (
    GREY,
    LETTERS,
    OKABE_ITO,
    blank,
    colours,
    folded,
    plain,
    png,
    tidy,
)

WIDTH = 7.2  # inches
MANY = 12  # classes: with more, a colour bar takes the legend's place
LETTERS_OF_NAME = 10  # of a class, in the legend
FURTHER = ("#999999", "#882255", "#332288", "#DDCC77")  # grey, and Tol's wine, indigo, sand


def label_histogram(
    counts: NDArray[np.int64], server: NDArray[np.int64], names: Sequence[str], title: str
) -> bytes:
    """Samples of each class at each client [clients, classes], stacked (FAST, figure 1).

    If the server holds samples, its bar [classes] stands apart on the right, on its own scale.
    """
    clients, classes = counts.shape
    shades = _shades(classes)
    figure = blank(WIDTH, 3.4)
    if server.sum():
        axes, side = figure.subplots(1, 2, width_ratios=[12, 1])
        _stack(side, server[None], shades)
        side.set_xticks([0], ["server"])
    else:
        axes = figure.subplots()
    _stack(axes, counts, shades)
    axes.set_xlabel("client", fontsize=LETTERS)
    axes.set_ylabel("training samples", fontsize=LETTERS)
    axes.set_xlim(-0.7, clients - 0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(folded(title, WIDTH - 1), fontsize=LETTERS, loc="left")
    _legend(figure, names or [str(c) for c in range(classes)], shades)
    return png(figure)


def _legend(figure: Figure, names: Sequence[str], shades: Sequence[str]) -> None:
    """Which colour is which class: a list, or a colour bar if there are many."""
    if len(shades) <= MANY:
        handles = [
            Patch(color=shade, label=plain(word[:LETTERS_OF_NAME]))
            for shade, word in zip(shades, names, strict=True)
        ]
        figure.legend(
            handles=handles[::-1],  # in the order of the stack
            loc="outside right center",
            fontsize=LETTERS - 1,
            frameon=False,
            title="class",
            title_fontsize=LETTERS - 1,
        )
    else:
        norm = BoundaryNorm(np.arange(len(shades) + 1) - 0.5, len(shades))
        scale = matplotlib.cm.ScalarMappable(norm, ListedColormap(shades))
        bar = figure.colorbar(scale, ax=figure.axes, pad=0.02, fraction=0.04)
        bar.set_ticks(np.linspace(0, len(shades) - 1, 6).round().astype(int).tolist())
        bar.set_label("class", fontsize=LETTERS)
        bar.ax.tick_params(labelsize=LETTERS - 1)
        bar.minorticks_off()


def _shades(classes: int) -> list[str]:
    """One colour per class: told apart up to MANY, steps of one scale for more."""
    return [*OKABE_ITO, *FURTHER][:classes] if classes <= MANY else colours(classes)


def _stack(axes: Axes, counts: NDArray[np.int64], shades: Sequence[str]) -> None:
    """Bars with gaps; with many clients one outline per class, which is drawn much faster."""
    tidy(axes)
    axes.grid(visible=False, axis="x")
    places = np.arange(len(counts) + 1)
    edge = 0.3 if len(shades) <= MANY else 0.0  # lines would hide thin pieces
    bottom = np.zeros(len(counts))
    for shade, column in zip(shades, counts.T, strict=True):
        top = bottom + column
        if len(counts) > 60:
            axes.stairs(top, places - 0.5, baseline=bottom, fill=True, color=shade, linewidth=0)
        else:
            axes.bar(
                *(places[:-1], column, 0.8, bottom),
                color=shade,
                edgecolor="white",
                linewidth=edge,
            )
        bottom = top
    axes.set_ylim(0, max(1.03 * float(bottom.max()), 1.0))


def participation_raster(came: NDArray[np.bool_], title: str) -> bytes:
    """Who came when [rounds, clients], and at the side how often (FAST, figure 2)."""
    figure = blank(WIDTH, 3.8)
    axes, side = figure.subplots(1, 2, sharey=True, width_ratios=[5, 1])
    draw_raster(axes, side, came, np.arange(len(came)), title)
    return png(figure)


def draw_raster(
    axes: Axes,
    side: Axes,
    came: NDArray[np.bool_],
    rounds: NDArray[np.int64],
    title: str,
    enforced: NDArray[np.bool_] | None = None,
    width: float = 4.8,
) -> None:
    """Draw who came [rounds, clients] in these rounds, and beside it each client's share of them.

    Rounds that are `enforced` [rounds] have a second colour. `width`: of the axes, in inches.
    """
    clients = came.shape[1]
    for panel in (axes, side):
        tidy(panel)
    axes.grid(visible=False)
    when, who = np.nonzero(came)
    second = np.zeros(len(came), bool) if enforced is None else enforced
    shade = np.where(second[when], OKABE_ITO[1], OKABE_ITO[0])
    thick = float(np.clip(72 * width / len(rounds), 0.35, 6))  # a round's room, in points
    axes.vlines(rounds[when], who - 0.4, who + 0.4, color=shade, linewidth=thick)
    axes.set_xlim(rounds[0] - 0.5, rounds[-1] + 0.5)
    axes.set_ylim(-0.7, clients - 0.3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("round", fontsize=LETTERS)
    axes.set_ylabel("client", fontsize=LETTERS)
    axes.set_title(folded(title, width), fontsize=LETTERS, loc="left")
    side.set_ylim(axes.get_ylim())
    share = 100 * came.mean(axis=0)
    side.barh(np.arange(clients), share, 0.8 if clients <= 60 else 1.0, color=OKABE_ITO[0])
    side.axvline(float(share.mean()), color=GREY, linewidth=0.8, linestyle="--")
    side.set_xlim(0, max(1.08 * float(share.max()), 1e-9))
    side.set_xlabel("rounds, %\n(dashed: mean)", fontsize=LETTERS)
