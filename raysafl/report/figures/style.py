"""The style of every figure: sizes, letters, colours.

No global state of matplotlib is changed.
"""

import io
import textwrap
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

DPI = 150
# Size of the letters, in points.
LETTERS = 9
# Letters of this size that fit in one inch.
CHARACTERS = 13
GREY = "#555555"
# These colours can be told apart by colour-blind readers (docs/papers.md#okabe-ito).
# The pale ones are last.
OKABE_ITO = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442",
)  # fmt: skip


# The last colour, yellow, is too pale for a line on white.
LINES = (*OKABE_ITO[:-1], "#999999")
MARKS = "os^DvPX*"


def colours(n: int) -> list[str]:
    """Return one colour per line: distinct ones for up to eight lines, else a colour scale."""
    if n <= len(LINES):
        return list(LINES[:n])
    steps = matplotlib.colormaps["viridis"]
    # The pale end of viridis cannot be seen on white.
    return [matplotlib.colors.to_hex(steps(0.92 * i / (n - 1))) for i in range(n)]


def dashes(n: int) -> list[Literal["-", "--"]]:
    """Return one style per line.

    Of up to eight lines, the fifth to the eighth are dashed, so that lines differ not
    only in colour.
    """
    return ["--" if 4 <= i < n <= len(LINES) else "-" for i in range(n)]


def literal(text: str) -> str:
    """Escape a text, so that matplotlib does not read a dollar sign as a formula."""
    return text.replace("$", r"\$")


def wrapped(text: str, width: float) -> str:
    """Break a text into lines that fit into `width` inches."""
    return literal(textwrap.fill(text, max(10, int(width * CHARACTERS))))


def new_figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """Make an empty figure, its size in inches, on a canvas that only writes files."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes) -> None:
    """Give axes a light grid, small ticks, and no lines at the top and the right."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=LETTERS - 1, color=GREY, length=3)


def to_png(figure: Figure) -> bytes:
    """Draw a figure as a PNG file with 256 colours, which takes a third of the bytes."""
    drawn = io.BytesIO()
    small = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(small, "png", dpi=(DPI, DPI))
    return small.getvalue()
