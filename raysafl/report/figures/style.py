"""The style of every figure: sizes, letters, colours, and how methods look.

No global state of matplotlib is changed for longer than a figure is drawn.
"""

import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from raysafl.report.analysis.layout import Layout, words_of
from raysafl.storage.manifest import Entry, Manifest, Table

DPI = 150
# A font of the family of Times, which comes with matplotlib.
TIMES = "STIXGeneral"
# Size of the letters, in points.
LETTERS = 9
# What has the size of numbers and legends.
SMALL = (
    "font.size xtick.labelsize ytick.labelsize legend.fontsize legend.title_fontsize"
)
# Letters of this size that fit in one inch.
CHARACTERS = 13
GREY = "#555555"
# Inches of the title, the legend and the names of the axes, on the screen.
ABOVE_AND_BELOW = 1.2
# Inches that a figure on the screen has at least.
SMALLEST = (6.4, 2.0)
# These colours can be told apart by colour-blind readers (docs/papers.md#okabe-ito).
# The pale ones are last.
OKABE_ITO = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442",
)  # fmt: skip


# The colours of lines, which differ in lightness, too: in grey print they stay apart, and the
# first ones most.
LINES = (
    "#0072B2", "#E69F00", "#000000", "#332288", "#2BA87E", "#882255", "#D55E00", "#88CCEE",
)  # fmt: skip
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
        width: the largest width of a figure in inches.
        height: its largest height in inches.
        is_fixed: whether every figure has this width exactly, and no title: in a paper the
            caption has its words.
        scale: the size of a panel, compared with one on the screen.
        letters: the size of names and titles, in points.
        small: the size of numbers and legends, in points.
        font: the name of the font.
    """

    width: float = 10.5
    height: float = 14.0
    is_fixed: bool = False
    scale: float = 1.0
    letters: float = LETTERS
    small: float = LETTERS - 1
    font: str = "DejaVu Sans"

    def panels(
        self,
        number: int,
        width: float,
        height: float,
        across: int = 4,
        beside: float = 0.5,
        below: str = "",
        **options: Any,
    ) -> tuple[Figure, list[Axes]]:
        """Make a figure of empty panels; of more than fit on a page the first ones.

        All sizes are inches on the screen.

        Args:
            number: how many panels there are, at least one.
            width: the width of a panel.
            height: the height of a panel.
            across: the largest number of panels side by side.
            beside: the room beside all panels.
            below: the name of the horizontal axis, at the lowest panel of each column.
            options: further arguments of `Figure.subplots`.
        """
        fitting = int((self.width / self.scale - beside) // width)
        rows = -(-number // max(1, min(across, fitting)))
        # Rows are evenly filled.
        wide = -(-number // rows)
        page = int((self.height / self.scale - ABOVE_AND_BELOW) // height)
        tall = max(1, min(rows, page))
        size = (width * wide + beside, height * tall + ABOVE_AND_BELOW)
        if self.is_fixed:
            figure = new_figure(self.width, self.scale * size[1])
        else:
            figure = new_figure(max(SMALLEST[0], size[0]), max(SMALLEST[1], size[1]))
        grid = list(figure.subplots(tall, wide, squeeze=False, **options).flat)
        for axes in grid[number:]:
            axes.remove()
        for axes in grid[:number]:
            style_axes(axes)
        for axes in grid[:number][-wide:]:
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(below)
        return figure, grid[:number]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Draw and save with letters of this font and size, which a PDF file holds as such."""
        ours: dict[Any, Any] = {
            "font.family": [self.font],
            **dict.fromkeys(SMALL.split(), self.small),
            **dict.fromkeys(("axes.labelsize", "axes.titlesize"), self.letters),
            "figure.labelsize": self.letters,
            "figure.titlesize": self.letters + 1,
            # Names are shown as they are, dollar signs too.
            "text.parse_math": False,
            # Venues refuse the fonts of type 3 that are written otherwise.
            "pdf.fonttype": 42,
            # Equal figures are equal files.
            "svg.hashsalt": "raysafl",
        }
        with matplotlib.rc_context(ours):
            yield


ON_SCREEN = Style()


def paper_style(width: float) -> Style:
    """Return the style of figures that are printed so many inches wide, in letters like Times.

    Smaller letters than these cannot be read in print.

    Raises:
        ValueError: the width is no number above 0.
    """
    if not isinstance(width, Real) or not 0 < width < math.inf:
        raise ValueError(f"width is {width!r}; give inches, such as 3.25")
    return Style(width, 8.0, is_fixed=True, scale=0.52, letters=8, small=7, font=TIMES)


def looks(n: int) -> list[Look]:
    """Return one look per method, which for up to 16 also differ where there is no colour.

    More methods have a colour scale.
    """
    if n > APART:
        return [Look(colour, mark=".") for colour in colours(n)]
    # Of two methods of one colour, the later one has another dash and hollow marks.
    size = len(LINES)
    return [
        Look(LINES[i % size], DASHES[(i + i // size) % 4], MARKS[i % size], i < size)
        for i in range(n)
    ]


def colours(n: int) -> list[str]:
    """Return one colour per line: distinct ones for up to seven lines, else a colour scale."""
    # The last colour, yellow, is too pale for a line on white.
    if n < len(OKABE_ITO):
        return list(OKABE_ITO[:n])
    steps = matplotlib.colormaps["viridis"]
    # The pale end of viridis cannot be seen on white.
    return [matplotlib.colors.to_hex(steps(0.92 * i / (n - 1))) for i in range(n)]


def label_of_numbers(table: Table) -> str:
    """Name the statistic of a table with its unit, for an axis."""
    return table.statistic + (f" ({table.unit})" if table.unit else "")


def wrapped(text: str, width: float, letters: float = LETTERS) -> str:
    """Break a text, its letters of this many points, into lines that fit into `width` inches."""
    # No line ends within `classes = 2`.
    whole = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")
    lines = textwrap.fill(whole, max(10, int(width * CHARACTERS * LETTERS / letters)))
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def fitted(axes: Axes, text: str) -> str:
    """Break a text into lines that fit above or below one of the panels of a figure."""
    grid = axes.get_gridspec()
    assert grid is not None  # it has one by `Figure.subplots`
    width = 0.9 * axes.figure.bbox.width / axes.figure.dpi / grid.ncols
    return wrapped(text, width, float(axes.title.get_fontsize()))


def entitle(figure: Figure, title: str, notes: Sequence[str], style: Style) -> None:
    """Put a title and notes above a figure, and keep the notes as sentences for its caption."""
    kept = list(filter(None, notes))
    figure.set_label(" ".join(f"{note[0].upper()}{note[1:]}." for note in kept))
    if not style.is_fixed:
        parts = [title, ", ".join(kept)]
        width = figure.get_figwidth()
        figure.suptitle("\n".join(wrapped(part, width) for part in parts if part))


def first_ones(shown: int, every: int, what: str) -> str:
    """Say that the first ones are shown, if these are not all."""
    first = "is the first" if shown == 1 else f"are the first {shown}"
    return f"shown {first} of {every:,} {what}" if shown < every else ""


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure, its size in inches."""
    return Figure(
        figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white"
    )


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
    canvas: Any = FigureCanvasAgg(figure)
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


# Largest number of methods that a legend names one by one.
NAMED = 48
# The name of a line, and its look.
Line = tuple[str, Look]


def lines_of(manifest: Manifest, layout: Layout) -> dict[str, Line]:
    """Return the line of each run: that of its method, or in a search one of its own."""

    def name_of(entry: Entry) -> str:
        if manifest.is_drawn:
            return words_of({axis: entry.labels.get(axis) for axis in layout.varying})
        return layout.method_name(layout.method_of(entry)) if layout.method else ""

    names = {entry.run_id: name_of(entry) for entry in manifest.entries}
    each = list(dict.fromkeys(names.values()))
    look_of = dict(zip(each, looks(len(each)), strict=True))
    return {run_id: (name, look_of[name]) for run_id, name in names.items()}


def name_below(
    figure: Figure, drawn: Iterable[Line], style: Style, is_line: bool
) -> None:
    """Add a legend below a figure, to which room is added for it.

    Very many names would leave no room, so the first and the last one are named then.

    Args:
        figure: the figure.
        drawn: the lines, in order; the only one of a sweep without methods has no name.
        style: the style of the figure.
        is_line: whether lines are named, or marks alone.
    """
    named = [line for line in dict.fromkeys(drawn) if line[0]]
    if not named:
        return
    if len(named) > NAMED:
        named = [named[0], named[-1]]
    width = figure.get_figwidth()
    names = [wrapped(name, 0.85 * width, style.small) for name, _ in named]
    # A name has its line, and the room up to the next one, of eight letters together.
    letters = width * CHARACTERS * LETTERS / style.small
    fitting = max(1, int(letters // (max(map(len, names)) + 8)))
    # Columns are evenly filled.
    columns = -(-len(names) // -(-len(names) // fitting))
    lines = -(-len(names) // columns) + sum(name.count("\n") for name in names)
    figure.set_figheight(figure.get_figheight() + lines * 1.4 * style.small / 72)
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            linestyle=look.dash if is_line else "none",
            marker=look.mark,
            markerfacecolor=look.face,
            markersize=4.5,
        )
        for _, look in named
    ]
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        handlelength=3.2 if is_line else 1.0,
        columnspacing=1.2,
        frameon=False,
    )
