"""Figures of a federation: which client holds which labels, and which came when."""

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
    OKABE_ITO,
    ON_SCREEN,
    Style,
    colours,
    literal,
    new_figure,
    style_axes,
    to_png,
    wrapped,
)

WIDTH = 7.2  # inches
# With more classes than this, a colour bar takes the legend's place.
MANY = 12
# Number of letters of a class's name in the legend.
LETTERS_OF_NAME = 10
# Further colours that can be told apart: grey, wine, indigo and sand.
FURTHER = ("#999999", "#882255", "#332288", "#DDCC77")


@ON_SCREEN.used()
def label_histogram(
    counts: NDArray[np.int64],
    server: NDArray[np.int64],
    names: Sequence[str],
    title: str,
) -> bytes:
    """Draw the samples of each class at each client as stacked bars.

    If the server holds samples, its bar stands apart on the right, on its own scale.
    The figure is that of FAST, figure 1 (docs/papers.md#fast).

    Args:
        counts: samples of each class at each client, [clients, classes].
        server: samples of each class at the server, [classes].
        names: the names of the classes; empty if they are not known.
        title: the title of the figure.

    Returns:
        A PNG file.
    """
    clients, classes = counts.shape
    # Distinct colours for few classes, else a colour scale.
    few = classes <= MANY
    shades = [*OKABE_ITO, *FURTHER][:classes] if few else colours(classes)
    figure = new_figure(WIDTH, 3.4)
    if server.sum():
        axes, side = figure.subplots(1, 2, width_ratios=[12, 1])
        _stack(side, server[None], shades)
        side.set_xticks([0], ["server"])
    else:
        axes = figure.subplots()
    _stack(axes, counts, shades)
    axes.set_xlabel("client")
    axes.set_ylabel("training samples")
    axes.set_xlim(-0.7, clients - 0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(wrapped(title, WIDTH - 1), loc="left")
    _name_classes(figure, names or [str(c) for c in range(classes)], shades)
    return to_png(figure)


def _name_classes(figure: Figure, names: Sequence[str], shades: Sequence[str]) -> None:
    """Name the class of each colour, with a colour bar if there are many."""
    if len(shades) <= MANY:
        handles = [
            Patch(color=shade, label=literal(word[:LETTERS_OF_NAME]))
            for shade, word in zip(shades, names, strict=True)
        ]
        figure.legend(
            # The bars are stacked from below.
            handles=handles[::-1],
            loc="outside right center",
            frameon=False,
            title="class",
        )
    else:
        norm = BoundaryNorm(np.arange(len(shades) + 1) - 0.5, len(shades))
        scale = matplotlib.cm.ScalarMappable(norm, ListedColormap(shades))
        bar = figure.colorbar(scale, ax=figure.axes, pad=0.02, fraction=0.04)
        bar.set_ticks(np.linspace(0, len(shades) - 1, 6).round().astype(int).tolist())
        bar.set_label("class")
        bar.minorticks_off()


def _stack(axes: Axes, counts: NDArray[np.int64], shades: Sequence[str]) -> None:
    """Draw stacked bars; for many clients as one outline per class, which is faster."""
    style_axes(axes)
    axes.grid(visible=False, axis="x")
    places = np.arange(len(counts) + 1)
    # Lines would hide thin pieces.
    edge = 0.3 if len(shades) <= MANY else 0.0
    bottom = np.zeros(len(counts))
    for shade, column in zip(shades, counts.T, strict=True):
        top = bottom + column
        if len(counts) > 60:
            axes.stairs(
                top, places - 0.5, baseline=bottom, fill=True, color=shade, linewidth=0
            )
        else:
            axes.bar(
                places[:-1],
                column,
                0.8,
                bottom,
                color=shade,
                edgecolor="white",
                linewidth=edge,
            )
        bottom = top
    axes.set_ylim(0, max(1.03 * float(bottom.max()), 1.0))


@ON_SCREEN.used()
def participation_raster(came: NDArray[np.bool_], title: str) -> bytes:
    """Draw which clients came when, and beside it how often, as in FAST, figure 2.

    Args:
        came: which clients came in which rounds, [rounds, clients].
        title: the title of the figure.

    Returns:
        A PNG file.
    """
    figure = new_figure(WIDTH, 3.8)
    axes, side = figure.subplots(1, 2, sharey=True, width_ratios=[5, 1])
    draw_raster(axes, side, came, title)
    return to_png(figure)


def draw_raster(
    axes: Axes,
    side: Axes,
    came: NDArray[np.bool_],
    title: str,
    enforced: NDArray[np.bool_] | None = None,
    width: float = 4.8,
    style: Style = ON_SCREEN,
) -> None:
    """Draw which clients came, and beside it each client's share of the rounds.

    Args:
        axes: where the raster is drawn, `width` inches wide.
        side: where the shares are drawn.
        came: which clients came in which rounds, [rounds, clients].
        title: the title above the raster.
        enforced: which rounds have a second colour, [rounds].
    """
    clients = came.shape[1]
    for panel in (axes, side):
        style_axes(panel)
    axes.grid(visible=False)
    when, who = np.nonzero(came)
    second = np.zeros(len(came), bool) if enforced is None else enforced
    shade = np.where(second[when], OKABE_ITO[1], OKABE_ITO[0])
    # A mark is as wide as the room of one round, in points.
    thick = float(np.clip(72 * width / len(came), 0.35, 6))
    axes.vlines(when, who - 0.4, who + 0.4, color=shade, linewidth=thick)
    axes.set_xlim(-0.5, len(came) - 0.5)
    axes.set_ylim(-0.7, clients - 0.3)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    axes.set_title(wrapped(title, width, style.letters), loc="left")
    side.set_ylim(axes.get_ylim())
    share = 100 * came.mean(axis=0)
    side.barh(
        np.arange(clients), share, 0.8 if clients <= 60 else 1.0, color=OKABE_ITO[0]
    )
    side.axvline(float(share.mean()), color=GREY, linewidth=0.8, linestyle="--")
    side.set_xlim(0, max(1.08 * float(share.max()), 1e-9))
    side.set_xlabel("rounds, %\n(dashed: mean)")
