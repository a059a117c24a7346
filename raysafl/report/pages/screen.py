"""The table of a sweep for a terminal."""

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.entries import aggregate, compare
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.part import Part
from raysafl.report.pages.document import Cell, Pair
from raysafl.report.pages.sections import pivot
from raysafl.report.wording import caption, scale_note
from raysafl.storage.manifest import Manifest

# Largest number of entries in a terminal.
MOST = 300


def screen(runs: pd.DataFrame, manifest: Manifest, width: int = 100) -> Screen:
    """Write the main table of a sweep for a terminal.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        width: number of columns of the terminal. A table that is wider gets one line
            per entry. One of very many entries shows a part of them, and says which.

    Raises:
        ValueError: the table names an unknown axis or statistic.
    """
    runs, manifest = improvements(runs, manifest)
    entries = compare(aggregate(runs, manifest), manifest)
    part = Part.of(entries, manifest, Layout.of(manifest), MOST)
    out = _fill(part, width)
    # A table that is too wide gets one line per entry.
    if part.layout.across and _width(out) > width:
        layout = replace(part.layout, down=part.layout.axes, across=[])
        out = _fill(replace(part, layout=layout), width)
    return out


def _fill(part: Part, width: int) -> Screen:
    """Fill the table with the axes that the layout has down and across."""
    manifest = part.manifest
    grid = pivot(part)
    notes = (caption(manifest), scale_note(manifest), part.note)
    out = Screen(
        title=Text(manifest.title or manifest.name),
        caption=Text("\n".join(text.replace("`", "") for text in notes if text)),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        # There must be room for the caption and the title.
        min_width=min(width, max(60, len(manifest.title))),
    )
    for i, name in enumerate(grid.head):
        number = i >= grid.heads
        justify: Literal["right", "left"] = "right" if number else "left"
        out.add_column(Text(name), justify=justify, no_wrap=number)
    last: Sequence[Cell] = ()
    for row in grid.rows:
        if last and grid.heads > 1 and row[0] != last[0]:
            out.add_section()
        # Labels that repeat the row above are left out.
        repeats = sum(
            row[: i + 1] == last[: i + 1] for i in range(grid.heads if last else 0)
        )
        out.add_row(
            *(
                Text("" if i < repeats else _without_markup(c))
                for i, c in enumerate(row)
            )
        )
        last = row
    return out


def _without_markup(cell: Cell) -> str:
    """Write our number, and the paper's below it."""
    return "\n".join(filter(None, cell[:2])) if isinstance(cell, Pair) else cell


def _width(table: Screen) -> int:
    """Return the number of columns that a table takes."""
    return Console(width=10_000, file=io.StringIO()).measure(table).maximum
