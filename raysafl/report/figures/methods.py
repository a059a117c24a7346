"""How methods look in figures, and the legend that names them."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raysafl.report.analysis.layout import Layout
from raysafl.report.figures.style import (
    APART,
    Look,
    Style,
    fitting_letters,
    literal,
    looks,
    wrapped,
)
from raysafl.storage.manifest import METHOD_AXES, Label, label_text

# Largest number of methods that a legend names one by one.
NAMED = 48
# Largest number of methods that a legend names without a title.
FEW = 8


def looks_of(layout: Layout) -> dict[Label, Look]:
    """Give each method its look."""
    values = layout.methods
    return dict(zip(values, looks(len(values)), strict=True))


def name_methods(figure: Figure, layout: Layout, style: Style, is_line: bool) -> None:
    """Name the methods below a figure, to which room is added for it.

    Very many names would leave no room, so the first and the last one are named then.
    """
    method = layout.method
    if method is None:
        return
    known = list(looks_of(layout).items())
    shown = [known[0], known[-1]] if len(known) > NAMED else known
    many = len(shown) > FEW
    name = "" if many or method in METHOD_AXES else f"{method} = "
    named = [(f"{name}{label_text(value)}", look) for value, look in shown]
    has_mark = not is_line or len(known) <= APART
    name_below(figure, named, style, is_line, has_mark, method if many else "")


def name_below(
    figure: Figure,
    named: Sequence[tuple[str, Look]],
    style: Style,
    is_line: bool,
    has_mark: bool = True,
    title: str = "",
) -> None:
    """Add a legend below a figure, to which room is added for it.

    Args:
        named: names with their looks.
        is_line: whether lines are named, or marks alone.
        has_mark: whether lines have marks.
        title: what the names are; empty for no title.
    """
    width = 0.85 * figure.get_figwidth()
    fits = fitting_letters(width, style.small)
    names = [
        literal(name) if len(name) <= fits else wrapped(name, width, style.small)
        for name, _ in named
    ]
    fitting = fitting_letters(figure.get_figwidth(), style.small)
    most = max(1, min(len(names), fitting // (max(map(len, names)) + 8)))
    # Columns are evenly filled.
    columns = -(-len(names) // -(-len(names) // most))
    lines = -(-len(names) // columns) + int(bool(title))
    lines += sum(name.count("\n") for name in names)
    figure.set_figheight(figure.get_figheight() + lines * 1.4 * style.small / 72)
    handles = []
    for _, own in named:
        line = Line2D(
            [], [], color=own.colour, linestyle=own.dash if is_line else "none"
        )
        line.set(marker=own.mark if has_mark else "", markerfacecolor=own.face)
        line.set(markersize=4.5)
        handles.append(line)
    figure.legend(
        handles,
        names,
        loc="outside lower center",
        ncols=columns,
        title=literal(title) or None,
        handlelength=3.2 if is_line else 1.0,
        columnspacing=1.2,
        frameon=False,
    )
