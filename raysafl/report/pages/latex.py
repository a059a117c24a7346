"""A table as LaTeX, with the rules of booktabs."""

import pandas as pd

from raysafl.core.text import printable
from raysafl.report.pages.document import Grid, Strong


def latex(grid: Grid, note: str = "") -> str:
    r"""Write a table as a `tabular`, which needs `\usepackage{booktabs}`.

    The label of a group is in its first row alone. LaTeX shows all texts as they are.

    Args:
        grid: the table.
        note: what stands in a comment above the table.
    """
    # As objects, texts that stand out stay what they are.
    frame = pd.DataFrame(grid.sparse(), columns=[*grid.head], dtype=object)
    bold = frame.map(lambda c: "textbf:--rwrap;" if isinstance(c, Strong) else "")
    shown = frame.style.hide(axis="index").apply(lambda _: bold, axis=None)
    shown = shown.format(escape="latex").format_index(escape="latex", axis="columns")
    columns = "l" * grid.heads + "r" * (len(grid.head) - grid.heads)
    table = shown.to_latex(column_format=columns, hrules=True)
    return "".join(f"% {line}\n" for line in note.splitlines()) + printable(table)
