"""The table of a sweep for a terminal."""

import io
import textwrap
from dataclasses import replace

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Strong
from raysafl.report.pages.sections import (
    entries_text,
    marks_text,
    pivot,
    share_text,
)
from raysafl.report.wording import (
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
        manifest: the sweep. Of very many entries the first are shown, and a sentence says how many.
        width: number of columns of the terminal. Instead of a table that is wider there is
            one with a line for each entry.

    Raises:
        ValueError: the table names an unknown statistic.
    """
    numbers = Numbers.of(runs, manifest, MOST)
    table = _filled(numbers)
    ruler = Console(width=10_000, file=io.StringIO())
    layout = numbers.layout
    if layout.across and ruler.measure(table).maximum > width:
        lines = replace(layout, down=layout.axes, across=[])
        table = _filled(replace(numbers, layout=lines))
    best = numbers.best
    notes = (
        entries_text(numbers),
        marks_text(numbers),
        spread_note(numbers.entries, manifest.table),
        scale_note(manifest),
        legend(numbers.shown_entries),
        share_text(numbers),
        winner_text(best, manifest) if best else "",
    )
    title = manifest.title or manifest.name
    # There must be room for the caption and the title.
    table.min_width = min(width, max(60, len(title)))
    table.title = Text(title)
    table.caption = Text(without_markup("\n".join(filter(None, notes))))
    return table


def _filled(numbers: Numbers) -> Screen:
    """Write the entries in their layout."""
    layout = numbers.layout
    grid = pivot(numbers)
    out = Screen(caption_justify="left", box=box.SIMPLE_HEAD)
    heads = list(layout.down)
    if heads and layout.across:
        # The axes that go across are named once, above the last of those that go down.
        heads[-1] = f"{', '.join(layout.across)} →\n{heads[-1]}"
    for head in heads:
        out.add_column(Text(head), vertical="bottom")
    keys = layout.combinations(numbers.shown, layout.across)
    for place, key in enumerate(keys, start=grid.heads):
        name = ", ".join(map(label_text, key)) if heads and key else grid.head[place]
        letters = max([HEAD, *(len(row[place]) for row in grid.rows)])
        out.add_column(
            Text(textwrap.fill(name, letters, break_long_words=False)),
            justify="right",
            no_wrap=True,
            vertical="bottom",
        )
    is_grouped = len(grid.groups()) > 1
    for row in grid.sparse():
        if is_grouped and row[0]:
            out.add_section()
        out.add_row(*(Text(c, "bold" if isinstance(c, Strong) else "") for c in row))
    return out
