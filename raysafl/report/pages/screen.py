"""The table of a sweep for a terminal."""

import io
from dataclasses import replace
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as Screen
from rich.text import Text

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.entries import aggregate, compare
from raysafl.report.analysis.layout import (
    Key,
    Layout,
    entries_by_labels,
    head_text,
    label_text,
)
from raysafl.report.analysis.part import Part
from raysafl.report.wording import caption, ours, scale_note, theirs
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
    layout = part.layout
    table = manifest.table
    down = layout.down
    across = layout.across
    found = entries_by_labels(part.entries, layout.axes)
    columns = layout.combinations(manifest, across)
    out = Screen(
        title=Text(manifest.title or manifest.name),
        caption=Text(
            "\n".join(
                text.replace("`", "")
                for text in (caption(manifest), scale_note(manifest), part.note)
                if text
            )
        ),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        # There must be room for the caption and the title.
        min_width=min(width, max(60, len(manifest.title))),
    )
    for axis in down:
        out.add_column(Text(axis))
    for key in columns:
        name = head_text(key, across, table.statistic)
        out.add_column(Text(name), justify="right", no_wrap=True)
    last: Key = ()
    for row in layout.combinations(manifest, down):
        if last and len(down) > 1 and row[0] != last[0]:
            out.add_section()
        entries_of_row = [_entry(found.get((*row, *key)), manifest) for key in columns]
        out.add_row(*_row_heads(row, last), *entries_of_row)
        last = row
    return out


def _entry(entry: Any, manifest: Manifest) -> Text:
    """Write our number, and the paper's below it."""
    if entry is None:
        return Text("")
    table = manifest.table
    lines = [ours(entry, table.statistic, table.unit), theirs(entry, table.unit)]
    return Text("\n".join(line for line in lines if line))


def _row_heads(row: Key, last: Key) -> list[Text]:
    """Write the labels of a row, leaving out those that repeat the row above."""
    heads = []
    repeats = bool(last)
    for i, value in enumerate(row):
        repeats = repeats and value == last[i]
        heads.append(Text("" if repeats else label_text(value)))
    return heads


def _width(table: Screen) -> int:
    """Return the number of columns that a table takes."""
    return Console(width=10_000, file=io.StringIO()).measure(table).maximum
