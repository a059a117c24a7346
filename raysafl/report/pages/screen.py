"""The table of a sweep for a terminal."""

import io
import textwrap
from collections.abc import Sequence

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table as Screen
from rich.text import Text

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.part import Part
from raysafl.report.analysis.winner import judging, winner_of
from raysafl.report.pages.document import Cell, Grid, Strong
from raysafl.report.pages.sections import entries_text, marks_text, pivot
from raysafl.report.wording import (
    SPREAD,
    as_markdown,
    legend,
    scale_note,
    spread_note,
    winner_text,
    without_markup,
)
from raysafl.storage.manifest import Manifest, label_text
from raysafl.storage.statistics import also_by_default

# Largest number of entries in a terminal.
MOST = 300
# Least number of letters at which the head of a column of numbers is wrapped.
HEAD = 10


def screen(runs: pd.DataFrame, manifest: Manifest, width: int = 100) -> Group:
    """Write the main table of a sweep for a terminal, and below it the best run.

    That is named where it may not be the best one of the table: in a search, and where
    validation samples chose it.

    Args:
        width: number of columns of the terminal. A table that is wider is divided into
            tables of some of its columns, one below the other. One of very many entries
            shows a part of them, and says which.

    Raises:
        ValueError: the table names an unknown axis or statistic.
    """
    numbers = Numbers.of(runs, manifest, MOST)
    part = numbers.part
    grid = pivot(part, numbers.marks, _also(numbers))
    columns = max(1, len(grid.head) - grid.heads)
    ruler = Console(width=10_000, file=io.StringIO())
    for size in range(min(columns, max(1, width // HEAD)), 0, -1):
        firsts = range(grid.heads, grid.heads + columns, size)
        tables = [_fill(part, grid, range(i, i + size), width) for i in firsts]
        if size == 1 or max(ruler.measure(own).maximum for own in tables) <= width:
            break
    best = numbers.winner
    if best is None and judging(runs, manifest) != manifest.quality:
        best = winner_of(runs, manifest)
    title = manifest.title or manifest.name
    notes = (
        entries_text(numbers),
        marks_text(numbers),
        spread_note(numbers.entries, numbers.manifest.table),
        scale_note(manifest),
        legend(part.entries),
        as_markdown(part.note),
        winner_text(best, manifest) if best else "",
    )
    tables[0].title = Text(title)
    text = "\n".join(filter(None, notes))
    tables[-1].caption = Text(without_markup(text))
    return Group(*tables)


def _also(numbers: Numbers) -> list[str]:
    """Return the statistics that the table shows beside its own because the user asks for them."""
    manifest = numbers.manifest
    usual = also_by_default(manifest.columns, manifest.quality)
    also = manifest.table.also
    asked = also[len(usual) :] if also[: len(usual)] == usual else also
    return [
        name
        for name in dict.fromkeys(asked)
        if name != manifest.table.statistic
        and numbers.part.entries[f"mean.{name}"].notna().any()
    ]


def _fill(part: Part, grid: Grid, places: range, width: int) -> Screen:
    """Fill a table with the columns of numbers at some places of the grid."""
    layout = part.layout
    out = Screen(
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        # There must be room for the caption and the title.
        min_width=min(width, max(60, len(part.manifest.title))),
    )
    heads = list(grid.head[: grid.heads])
    across = layout.combinations(part.manifest, layout.across)
    if heads and layout.across:
        # The axes that go across are named once, above the last of those that go down.
        heads[-1] = f"{', '.join(layout.across)} →\n{heads[-1]}"
    for head in heads:
        out.add_column(Text(head), vertical="bottom")
    columns = [_aligned(grid.rows, i) for i in places if i < len(grid.head)]
    for i, column in zip(places, columns, strict=False):
        key = across[i - grid.heads] if heads and i - grid.heads < len(across) else ()
        name = ", ".join(map(label_text, key)) or grid.head[i]
        letters = max([HEAD, *(len(text.plain.partition("\n")[0]) for text in column)])
        out.add_column(
            Text(textwrap.fill(name, letters, break_long_words=False)),
            justify="right",
            no_wrap=True,
            vertical="bottom",
        )
    nested = grid.nested()
    for row, (repeats, is_new), *numbers in zip(
        grid.rows, nested, *columns, strict=True
    ):
        if is_new:
            out.add_section()
        # Labels that repeat the row above are left out.
        labels = [*[""] * repeats, *map(str, row[repeats : grid.heads])]
        out.add_row(*map(Text, labels), *numbers)
    return out


def _aligned(rows: Sequence[Sequence[Cell]], place: int) -> list[Text]:
    """Write a column of numbers: means, and their spreads aligned."""
    cells = [row[place] for row in rows]
    ends = [cell.partition(SPREAD) for cell in cells]
    longest = max((len(end) for *_, end in ends), default=0)
    return [
        Text(
            mean + sign + end.rjust(longest) if sign else mean,
            style="bold" if isinstance(cell, Strong) else "",
        )
        for cell, (mean, sign, end) in zip(cells, ends, strict=True)
    ]
