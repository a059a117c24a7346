"""How methods look in figures, and the legend that names them."""

import textwrap

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raysafl.report.analysis.layout import METHOD_AXES, Layout
from raysafl.report.figures.style import (
    APART,
    CHARACTERS,
    LETTERS,
    Look,
    Style,
    fitting_letters,
    literal,
    looks,
)
from raysafl.storage.manifest import Label, label_text

# Largest number of methods that a legend names one by one.
NAMED = 48
# Largest number of methods whose legend stands below the figure.
FEW = 8


def looks_of(layout: Layout) -> dict[Label, Look]:
    """Give each method its look."""
    values = layout.methods
    return dict(zip(values, looks(len(values)), strict=True))


def name_methods(figure: Figure, layout: Layout, style: Style, is_line: bool) -> None:
    """Name the methods: below the figure, or in columns beside it if there are many.

    A figure of a fixed width has room below only. Very many names would leave no room,
    so the first and the last one are named then.

    Args:
        figure: the figure, to which room for a legend below it is added.
        style: how wide it is.
        is_line: whether methods are shown as lines.
    """
    method = layout.method
    if method is None:
        return
    known = looks_of(layout)
    values = layout.methods
    if len(values) > NAMED:
        values = [values[0], values[-1]]
    many = len(values) > FEW
    beside = many and not style.is_fixed
    name = "" if many or method in METHOD_AXES else f"{method} = "
    names = [f"{name}{label_text(value)}" for value in values]
    longest = max(map(len, names)) + 8
    fitting = fitting_letters(figure.get_figwidth(), style.small) // longest
    most = max(1, min(len(values), fitting))
    # Below the figure, columns are evenly filled.
    below = -(-len(values) // -(-len(values) // most))
    if not beside:
        lines = -(-len(values) // below) + int(many)
        figure.set_figheight(figure.get_figheight() + lines * 1.4 * style.small / 72)
    has_mark = not is_line or len(known) <= APART
    figure.legend(
        [
            Line2D(
                [],
                [],
                color=known[value].colour,
                linestyle=known[value].dash if is_line else "none",
                marker=known[value].mark if has_mark else None,
                markerfacecolor=known[value].face,
                markersize=4.5,
            )
            for value in values
        ],
        [literal(name) for name in names],
        loc="outside right upper" if beside else "outside lower center",
        ncols=-(-len(values) // 24) if beside else below,
        title=literal(method) if many else None,
        fontsize=style.letters if not style.is_fixed else style.small,
        title_fontsize=style.small,
        handlelength=3.2 if is_line else 1.0,
        columnspacing=1.2,
        frameon=False,
    )
    if beside:
        # The title stands above the panels, beside the legend.
        width = figure.get_figwidth()
        letters = CHARACTERS * LETTERS / style.small
        room = width - -(-len(values) // 24) * longest / letters
        wrap = textwrap.TextWrapper(fitting_letters(room))
        parts = map(wrap.fill, figure.get_suptitle().split("\n"))
        size = style.letters + 1
        figure.suptitle("\n".join(parts), x=room / width / 2, fontsize=size)
