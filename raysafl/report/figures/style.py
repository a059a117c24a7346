"""The look of every figure: size, letters, colours. No global state of matplotlib is touched."""

import io
import textwrap
from typing import Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

DPI = 150
LETTERS = 9  # points
CHARACTERS = 13  # of this size, per inch
GREY = "#555555"
# Okabe and Ito (2008), safe for colour-blind readers; the pale ones last
OKABE_ITO = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442",
)  # fmt: skip


LINES = (*OKABE_ITO[:-1], "#999999")  # their yellow is too pale for a line on white
MARKS = "os^DvPX*"


def colours(n: int) -> list[str]:
    """One colour per line: Okabe and Ito's for up to eight, steps of viridis for more."""
    if n <= len(LINES):
        return list(LINES[:n])
    steps = matplotlib.colormaps["viridis"]
    # the pale end of viridis cannot be seen on white
    return [matplotlib.colors.to_hex(steps(0.92 * i / (n - 1))) for i in range(n)]


def dashes(n: int) -> list[Literal["-", "--"]]:
    """One style per line: the fifth to eighth of up to eight are dashed, so that hue is not all."""
    return ["--" if 4 <= i < n <= len(LINES) else "-" for i in range(n)]


def columns(n: int, most: int) -> int:
    """Columns of a legend of n lines: at most so many, and as full as can be."""
    return -(-n // -(-n // most))


def plain(text: str) -> str:
    """Text that matplotlib shows as it is: a dollar sign starts no formula."""
    return text.replace("$", r"\$")


def folded(text: str, width: float) -> str:
    """Plain text in lines that fit into so many inches."""
    return plain(textwrap.fill(text, max(10, int(width * CHARACTERS))))


def blank(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Figure:
    """An empty figure, in inches, on a canvas that only writes files."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def tidy(axes: Axes) -> None:
    """Light grid, no box, small ticks."""
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=LETTERS - 1, color=GREY, length=3)


def png(figure: Figure) -> bytes:
    """The figure as the bytes of a PNG file, in 256 colours: a third of the size, same look."""
    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, pil_kwargs={"compress_level": 1})
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(small, "png", dpi=(DPI, DPI))
    return small.getvalue()
