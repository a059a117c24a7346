"""The style of every figure: sizes, letters, colours.

No global state of matplotlib is changed for longer than a figure is drawn.
"""

import io
import re
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from PIL import Image

from raysafl.core.text import printable
from raysafl.storage.manifest import Table

# A formula of a name that a user gave: as in Markdown, `$` touches it on both sides, and no
# digit follows, so that prices are none. Of LaTeX's commands it has only such as are signs.
FORMULA = re.compile(
    r"(\$(?!\s)(?:[\w ^{}()+=<>,./|!'-]|\\(?:(?:var)?(?:epsilon|theta|rho|sigma|phi)"
    r"|alpha|beta|[gG]amma|[dD]elta|zeta|eta|Theta|iota|kappa|[lL]ambda|mu|nu|xi|Xi|pi|Pi"
    r"|Sigma|tau|upsilon|Phi|chi|[pP]si|[oO]mega|infty|times|cdot|le|ge|ne|to|sim|ell"
    r"|hat|bar|tilde|mathrm|frac|sqrt)(?![A-Za-z]))+(?<!\s)\$(?!\d))"
)
DPI = 150
# Held as long as matplotlib's settings are other than the default ones.
SETTINGS_LOCK = threading.RLock()
# Size of the letters, in points.
LETTERS = 9
# What has the size of numbers and legends.
SMALL = (
    "font.size xtick.labelsize ytick.labelsize legend.fontsize legend.title_fontsize"
)
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
# A line is whole, or a pattern of points drawn and left out.
Dash = Literal["-"] | tuple[int, tuple[float, ...]]
DASHES: tuple[Dash, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))
FileKind = Literal["pdf", "svg", "png"]
# Largest number of methods that each have a look of their own.
APART = 16
# Venues print colours and photographs at this resolution.
PRINTED_DPI = 300


class Look(NamedTuple):
    """How the line and the marks of a method look; a mark is hollow if it is not filled."""

    colour: str
    dash: Dash = "-"
    mark: str = "o"
    is_filled: bool = True

    @property
    def face(self) -> str:
        """The colour inside a mark."""
        return self.colour if self.is_filled else "white"


@dataclass(frozen=True)
class Style:
    """How large a figure and its letters are.

    Attributes:
        width: the width of a figure in inches; it is less if few panels need less room,
            unless the width is fixed.
        height: the largest height of a page in inches.
        is_fixed: whether the figure has this width exactly, and no title: in a paper the
            caption has its words.
        room: the size of a panel, compared with one on the screen.
        letters: the size of names and titles, in points.
        small: the size of numbers and legends, in points.
        font: the name of the font.
    """

    width: float = 10.5
    height: float = 12.8
    is_fixed: bool = False
    room: float = 1.0
    letters: float = LETTERS
    small: float = LETTERS - 1
    font: str = "DejaVu Sans"

    def across(self, panel: float, most: int) -> int:
        """Return how many panels of some inches fit side by side, `most` at most."""
        return max(1, min(most, int((self.width + 0.01) // (panel * self.room))))

    def figure(self, width: float, height: float) -> Figure:
        """Make an empty figure that is this large on the screen.

        Args:
            width: the inches that it needs on the screen; those of the style if they are
                fixed.
            height: its height in inches, already in the style's own room.
        """
        return new_figure(self.width if self.is_fixed else width, height)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Draw and save with letters of this font and size, which a PDF file holds as such.

        Another thread waits meanwhile, as matplotlib's settings are those of all threads:
        MLflow's draws curves of single runs while a report is drawn.
        """
        ours: dict[Any, Any] = {
            "font.family": [self.font],
            **dict.fromkeys(SMALL.split(), self.small),
            **dict.fromkeys(("axes.labelsize", "axes.titlesize"), self.letters),
            "figure.labelsize": self.letters,
            "figure.titlesize": self.letters + 1,
            "mathtext.fontset": "stix",
            # Venues refuse the fonts of type 3 that are written otherwise.
            "pdf.fonttype": 42,
            # Equal figures are equal files.
            "svg.hashsalt": "raysafl",
        }
        with SETTINGS_LOCK, matplotlib.rc_context(ours):
            yield


ON_SCREEN = Style()


def looks(n: int) -> list[Look]:
    """Return one look per method, which for up to 16 also differ where there is no colour.

    More methods have a colour scale.
    """
    if n > APART:
        scale = enumerate(colours(n))
        return [Look(colour, mark=MARKS[i % len(MARKS)]) for i, colour in scale]
    # Of two methods of one colour, the later one has another dash and hollow marks.
    size = len(LINES)
    return [
        Look(LINES[i % size], DASHES[(i + i // size) % 4], MARKS[i % size], i < size)
        for i in range(n)
    ]


def colours(n: int) -> list[str]:
    """Return one colour per line: distinct ones for up to eight lines, else a colour scale."""
    if n <= len(LINES):
        return list(LINES[:n])
    steps = matplotlib.colormaps["viridis"]
    # The pale end of viridis cannot be seen on white.
    return [matplotlib.colors.to_hex(steps(0.92 * i / (n - 1))) for i in range(n)]


def literal(text: str) -> str:
    """Escape a text, so that matplotlib reads no dollar sign but those of a formula."""
    return "".join(
        part if i % 2 else part.replace("$", r"\$")
        for i, part in enumerate(divided_at_formulas(printable(text)))
    )


def divided_at_formulas(text: str) -> list[str]:
    r"""Divide a text; every second part is a formula that matplotlib and LaTeX can read.

    Example:
        >>> divided_at_formulas(r"$\lambda$ = 0.1, $\input{a}$ for $5")
        ['', '$\\lambda$', ' = 0.1, $\\input{a}$ for $5']
    """
    parts = [""]
    for i, part in enumerate(FORMULA.split(text)):
        if i % 2 and _can_be_drawn(part):
            parts += [part, ""]
        else:
            parts[-1] += part
    return parts


def label_of_numbers(table: Table) -> str:
    """Name the statistic of a table with its unit, for an axis."""
    return literal(table.statistic + (f" ({table.unit})" if table.unit else ""))


def _can_be_drawn(formula: str) -> bool:
    """Whether matplotlib knows all that a formula has."""
    try:
        MathTextParser("path").parse(formula)
    except ValueError:
        return False
    return True


def fitting_letters(width: float, letters: float = LETTERS) -> int:
    """Return how many letters of this many points fit into `width` inches."""
    return max(10, int(width * CHARACTERS * LETTERS / letters))


def wrapped(text: str, width: float, letters: float = LETTERS) -> str:
    """Break a text, its letters of this many points, into lines that fit into `width` inches."""
    # No line ends within `classes = 2`.
    whole = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    return literal(textwrap.fill(whole, fitting_letters(width, letters)))


def fitted_title(text: str, figure: Figure, wide: int, style: Style) -> str:
    """Break the title of one of `wide` panels side by side into lines that fit above it."""
    return wrapped(text, 0.9 * figure.get_figwidth() / wide, style.letters)


def entitle(figure: Figure, title: str, notes: Sequence[str], style: Style) -> None:
    """Put a title and notes above a figure, and keep the notes as sentences for its caption."""
    kept = list(filter(None, notes))
    figure.set_label(" ".join(f"{note[0].upper()}{note[1:]}." for note in kept))
    if not style.is_fixed:
        parts = [title, ", ".join(kept)]
        width = figure.get_figwidth()
        lines = [wrapped(part, width) for part in parts if part]
        figure.suptitle("\n".join(lines))


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
    axes.tick_params(color=GREY, length=3)


def to_png(figure: Figure) -> bytes:
    """Draw a figure as a PNG file with 256 colours, which takes a third of the bytes."""
    small = io.BytesIO()
    picture = rendered(figure).quantize(256, dither=Image.Dither.NONE)
    picture.save(small, "png", dpi=(DPI, DPI))
    return small.getvalue()


def rendered(figure: Figure) -> Image.Image:
    """Draw a figure once; to save it as a file would draw it twice, for its layout."""
    canvas: Any = figure.canvas  # that of `new_figure`
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def to_file(figure: Figure, kind: FileKind) -> bytes:
    """Draw a figure as a file for a paper; equal figures are equal bytes."""
    dates = {"pdf": ("CreationDate",), "svg": ("Date",), "png": ()}
    drawn = io.BytesIO()
    figure.savefig(
        drawn, format=kind, dpi=PRINTED_DPI, metadata=dict.fromkeys(dates[kind])
    )
    return drawn.getvalue()
