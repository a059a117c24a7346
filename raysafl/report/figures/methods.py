"""How methods look in figures, and the legend that names them."""

from collections.abc import Iterable

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raysafl.report.analysis.layout import Layout, words_of
from raysafl.report.figures.style import (
    CHARACTERS,
    LETTERS,
    Look,
    Style,
    looks,
    wrapped,
)
from raysafl.storage.manifest import Entry, Manifest

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
