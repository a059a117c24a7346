"""How methods look in figures, and the legend that names them."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raysafl.report.analysis.layout import METHOD_AXES, Layout
from raysafl.report.figures.style import CHARACTERS, LETTERS, MARKS, colours, literal
from raysafl.storage.manifest import Label, label_text

# Largest number of methods that a legend names one by one.
NAMED = 48
# Largest number of methods whose legend stands below the figure.
FEW = 8
# A colour and a mark.
Look = tuple[str, str]


def marks_of(layout: Layout) -> dict[Label, Look]:
    """Give each method a colour and a mark."""
    values = layout.methods
    marks = [MARKS[i % len(MARKS)] for i in range(len(values))]
    return dict(zip(values, zip(colours(len(values)), marks, strict=True), strict=True))


def name_marks(figure: Figure, layout: Layout) -> None:
    """Name the methods of a figure that shows them as marks."""
    looks = marks_of(layout).values()
    marks = [Line2D([], [], color=c, marker=m, linestyle="none") for c, m in looks]
    name_methods(figure, layout, marks)


def name_methods(figure: Figure, layout: Layout, handles: Sequence[Line2D]) -> None:
    """Name the methods: below the figure, or in columns beside it if there are many.

    Very many names would leave no room, so the first and the last one are named then.

    Args:
        figure: the figure.
        layout: the layout of the sweep's axes.
        handles: what each method looks like, in their order.
    """
    method = layout.method
    if method is None:
        return
    values = layout.methods
    if len(values) > NAMED:
        values = [values[0], values[-1]]
        handles = [handles[0], handles[-1]]
    many = len(values) > FEW
    name = "" if many or method in METHOD_AXES else f"{method} = "
    names = [f"{name}{label_text(value)}" for value in values]
    fitting = int(figure.get_figwidth() * CHARACTERS / (max(map(len, names)) + 8))
    # Below the figure, columns are evenly filled.
    below = -(-len(values) // -(-len(values) // max(1, min(4, fitting))))
    figure.legend(
        handles,
        [literal(name) for name in names],
        loc="outside right upper" if many else "outside lower center",
        ncols=-(-len(values) // 24) if many else below,
        title=literal(method) if many else None,
        fontsize=LETTERS,
        title_fontsize=LETTERS,
        frameon=False,
    )
