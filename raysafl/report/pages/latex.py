"""A table as LaTeX, with the rules of booktabs."""

import re
from collections.abc import Sequence

from raysafl.core.text import printable
from raysafl.report.figures.style import divided_at_formulas
from raysafl.report.pages.document import Cell, Grid, Strong
from raysafl.report.wording import SPREAD

# What LaTeX reads as a command, or does not have in its usual fonts.
SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # At the beginning of a row these would be arguments of the end of the row above.
    "[": "{[}",
    "*": "{*}",
    "\u00b1": r"$\pm$",
    "\u2020": r"$\dagger$",
    "\u2021": r"$\ddagger$",
    "\u2013": "--",
    "\u2212": "$-$",
}


def latex(grid: Grid, across: str = "", note: str = "") -> str:
    r"""Write a table as a `tabular`, which needs `\\usepackage{booktabs}`.

    Labels that repeat the row above are left out. Of an entry that stands out the mean is
    bold.

    Args:
        grid: the table.
        across: the axis whose labels the other columns have; it is named once above them.
        note: what stands in a comment above the table.
    """
    numbers = len(grid.head) - grid.heads
    heads = [
        head.removeprefix(f"{across} = ") if across else head for head in grid.head
    ]
    lines = [f"% {line}" for line in printable(note).splitlines()]
    lines += [rf"\begin{{tabular}}{{{'l' * grid.heads}{'r' * numbers}}}", r"\toprule"]
    if across and numbers > 1:
        first = grid.heads + 1
        span = rf"\multicolumn{{{numbers}}}{{c}}{{{escaped(across)}}}"
        lines.append(f"{'& ' * grid.heads}{span} \\\\")
        lines.append(rf"\cmidrule(lr){{{first}-{len(grid.head)}}}")
    lines += [_row_text([escaped(head) for head in heads]), r"\midrule"]
    for row, (repeats, is_new) in zip(grid.rows, grid.nested(), strict=True):
        if is_new:
            lines.append(r"\addlinespace")
        lines.append(_row_text([""] * repeats + [*map(_entry_latex, row[repeats:])]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escaped(text: str) -> str:
    """Write a text so that LaTeX shows it as it is, and each formula as a formula."""
    one_line = re.sub(r"\s+", " ", printable(text))
    return "".join(
        part if i % 2 else "".join(SPECIAL.get(letter, letter) for letter in part)
        for i, part in enumerate(divided_at_formulas(one_line))
    )


def _row_text(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _entry_latex(cell: Cell) -> str:
    """Write an entry, its mean bold if it stands out."""
    if not isinstance(cell, Strong):
        return escaped(cell)
    mean, sign, rest = cell.partition(SPREAD)
    return rf"\textbf{{{escaped(mean)}}}" + escaped(sign + rest)
