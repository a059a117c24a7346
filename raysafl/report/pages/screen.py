"""The table of a sweep for a terminal."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.part import Part
from raysafl.report.analysis.standing import Marks
from raysafl.report.pages.document import Cell, Strong
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

# Largest number of entries in a terminal.
MOST = 300
# Least number of letters at which the head of a column of numbers is wrapped.
HEAD = 10


def screen(runs: pd.DataFrame, manifest: Manifest, width: int = 100) -> Screen:
    """Write the main table of a sweep for a terminal, and below it the best run.

    That is named where it may not be the best one of the table: in a search, and where
    validation samples chose it.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep. Of very many entries a part is shown, and a sentence says which.
        width: number of columns of the terminal. Instead of a table that is wider there is
            one with a line for each entry.

    Raises:
        ValueError: the table names an unknown axis or statistic.
    """
    numbers = Numbers.of(runs, manifest, MOST)
    part = numbers.part
    table = _filled(part, numbers.marks)
    ruler = Console(width=10_000, file=io.StringIO())
    if part.layout.across and ruler.measure(table).maximum > width:
        lines = replace(part.layout, down=part.layout.axes, across=[])
        table = _filled(replace(part, layout=lines), numbers.marks)
    best = numbers.best
    notes = (
        entries_text(numbers),
        marks_text(numbers),
        spread_note(numbers.entries, manifest.table),
        scale_note(manifest),
        legend(part.entries),
        as_markdown(part.note),
        winner_text(best, manifest) if best else "",
    )
    title = manifest.title or manifest.name
    # There must be room for the caption and the title.
    table.min_width = min(width, max(60, len(title)))
    table.title = Text(title)
    table.caption = Text(without_markup("\n".join(filter(None, notes))))
    return table


def _filled(part: Part, marks: Marks) -> Screen:
    """Write the entries in the layout of their part."""
    layout = part.layout
    grid = pivot(part, marks)
    out = Screen(caption_justify="left", box=box.SIMPLE_HEAD)
    heads = list(layout.down)
    if heads and layout.across:
        # The axes that go across are named once, above the last of those that go down.
        heads[-1] = f"{', '.join(layout.across)} →\n{heads[-1]}"
    for head in heads:
        out.add_column(Text(head), vertical="bottom")
    columns = []
    keys = layout.combinations(part.manifest, layout.across)
    for place, key in enumerate(keys, start=grid.heads):
        columns.append(_aligned([row[place] for row in grid.rows]))
        name = ", ".join(map(label_text, key)) if heads and key else grid.head[place]
        letters = max([HEAD, *(len(cell.plain) for cell in columns[-1])])
        out.add_column(
            Text(textwrap.fill(name, letters, break_long_words=False)),
            justify="right",
            no_wrap=True,
            vertical="bottom",
        )
    for row, (repeats, is_new), *cells in zip(
        grid.rows, grid.nested(), *columns, strict=True
    ):
        if is_new:
            out.add_section()
        # Labels that repeat the row above are left out.
        labels = [*[""] * repeats, *map(str, row[repeats : grid.heads])]
        out.add_row(*map(Text, labels), *cells)
    return out


def _aligned(cells: Sequence[Cell]) -> list[Text]:
    """Write a column of numbers: means, and their spreads aligned."""
    ends = [cell.partition(SPREAD) for cell in cells]
    longest = max((len(end) for *_, end in ends), default=0)
    return [
        Text(
            mean + sign + end.rjust(longest) if sign else mean,
            style="bold" if isinstance(cell, Strong) else "",
        )
        for cell, (mean, sign, end) in zip(cells, ends, strict=True)
    ]
