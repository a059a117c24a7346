"""Figures of a federation: which client holds which labels, and which participate when."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.figures.style import (
    GREY,
    OKABE_ITO,
    ON_SCREEN,
    colours,
    fitted,
    new_figure,
    style_axes,
    to_png,
    wrapped,
)

WIDTH = 7.2  # inches
# Largest number of clients between which there are gaps.
FEW = 60
# Largest number of classes that have distinct colours, and names beside the colour bar.
MANY = 12
# Number of letters of a class's name.
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
    norm = BoundaryNorm(np.arange(classes + 1) - 0.5, classes)
    scale = ScalarMappable(norm, ListedColormap(shades))
    bar = figure.colorbar(scale, ax=figure.axes, pad=0.02, fraction=0.04)
    ticks = np.linspace(0, classes - 1, min(classes, MANY)).round().astype(int)
    words = [
        str(names[tick])[:LETTERS_OF_NAME] if names else str(tick) for tick in ticks
    ]
    bar.set_ticks(ticks.tolist(), labels=words)
    bar.set_label("class")
    bar.minorticks_off()
    return to_png(figure)


def _stack(axes: Axes, counts: NDArray[np.int64], shades: Sequence[str]) -> None:
    """Draw stacked bars as one outline per class, which is fast for many clients."""
    style_axes(axes)
    axes.grid(visible=False, axis="x")
    # The gap between two bars is a step without a value.
    half = 0.4 if len(counts) <= FEW else 0.5
    places = np.arange(len(counts))[:, None] + [-half, half]
    edges = places.ravel()
    total = counts.cumsum(axis=1)
    for shade, upper, column in zip(shades, total.T, counts.T, strict=True):
        top = np.full(len(edges) - 1, np.nan)
        bottom = np.zeros(len(edges) - 1)
        top[::2] = upper
        bottom[::2] = upper - column
        axes.stairs(top, edges, baseline=bottom, fill=True, color=shade, linewidth=0)
    axes.set_ylim(0, max(1.03 * float(total.max()), 1.0))


@ON_SCREEN.used()
def participation_raster(took_part: NDArray[np.bool_], title: str) -> bytes:
    """Draw which clients participate when, and beside it how often, as in FAST, figure 2.

    Args:
        took_part: which clients participated in which rounds, [rounds, clients].
        title: the title of the figure.

    Returns:
        A PNG file.
    """
    figure = new_figure(WIDTH, 3.8)
    draw_raster(figure.subplots(), took_part, title, np.zeros(len(took_part), bool))
    figure.supxlabel("dashed: the mean of the clients", color=GREY)
    return to_png(figure)


def draw_raster(
    axes: Axes, took_part: NDArray[np.bool_], title: str, enforced: NDArray[np.bool_]
) -> None:
    """Draw which clients participate, and beside it each client's share of the rounds.

    Args:
        axes: where the raster is drawn.
        took_part: which clients participated in which rounds, [rounds, clients].
        title: the title above the raster.
        enforced: which rounds have a second colour, [rounds].
    """
    rounds, clients = took_part.shape
    colours = np.array([to_rgb(OKABE_ITO[int(second)]) for second in enforced])
    picture = np.where(took_part.T[..., None], colours, 1.0)
    axes.imshow(picture, aspect="auto", origin="lower", interpolation="antialiased")
    if clients <= FEW:
        # Rows of neighbours are told apart.
        axes.hlines(np.arange(clients) + 0.5, -0.5, rounds - 0.5, "white", linewidth=1)
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    axes.set_title(fitted(axes, title))
    side = axes.inset_axes((1.04, 0, 0.24, 1), sharey=axes)
    share = 100 * took_part.mean(axis=0)
    height = 0.8 if clients <= FEW else 1.0
    side.barh(np.arange(clients), share, height, color=OKABE_ITO[0])
    side.axvline(float(share.mean()), color=GREY, linewidth=0.8, linestyle="--")
    side.set_xlim(0, max(1.08 * float(share.max()), 1e-9))
    side.set_xlabel("% of rounds")
    side.tick_params(labelleft=False)
    for panel in (axes, side):
        style_axes(panel)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
