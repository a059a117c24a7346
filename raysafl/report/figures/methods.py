"""How methods look in figures, and the legend that names them."""

from collections.abc import Sequence, Set

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raysafl.report.analysis.layout import Layout
from raysafl.report.figures.style import (
    CHARACTERS,
    LETTERS,
    Look,
    Style,
    looks,
    wrapped,
)
from raysafl.storage.manifest import Label

# Largest number of methods that a legend names one by one.
NAMED = 48


def looks_of(layout: Layout) -> dict[Label, Look]:
    """Give each method its look."""
    return dict(zip(layout.methods, looks(len(layout.methods)), strict=True))


def name_methods(
    figure: Figure, layout: Layout, drawn: Set[Label], style: Style, is_line: bool
) -> None:
    """Name the methods that are drawn below a figure, to which room is added for it.

    Very many names would leave no room, so the first and the last one are named then.
    """
    if layout.method is not None:
        looks = looks_of(layout).items()
        named = [(layout.method_name(m), look) for m, look in looks if m in drawn]
        shown = [named[0], named[-1]] if len(named) > NAMED else named
        name_below(figure, shown, style, is_line)


def name_below(
    figure: Figure, named: Sequence[tuple[str, Look]], style: Style, is_line: bool
) -> None:
    """Add a legend below a figure, to which room is added for it.

    Args:
        figure: the figure.
        named: names with their looks.
        style: the style of the figure.
        is_line: whether lines are named, or marks alone.
    """
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
