"""Reports of sweeps of very many entries: what they show, what they leave out and say."""

import io
import itertools
from pathlib import Path

import pandas as pd
import pytest
from helpers.made import end
from rich.console import Console

from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.part import MOST, Part
from raysafl.report.pages.screen import screen
from raysafl.report.write import write_report
from raysafl.storage.manifest import Entry, Label, Manifest, Table
from raysafl.storage.store import Store

SIZES = (60, 6, 5)
FINISHED = 40


def grid(sizes: tuple[int, ...] = SIZES, **fields: object) -> Manifest:
    """A grid of numbered labels on the axes a, b, c, of which the last goes across."""
    names = list("abc"[: len(sizes)])
    return of_keys(
        names, list(itertools.product(*(range(size) for size in sizes))), **fields
    )


def of_keys(
    names: list[str], keys: list[tuple[Label, ...]], **fields: object
) -> Manifest:
    """A sweep with an entry for each of these labels."""
    entries = [
        Entry(run_id=f"{i:012x}", labels=dict(zip(names, key, strict=True)))
        for i, key in enumerate(keys)
    ]
    table = Table(rows=names[:-1] or names, columns=names[1:][-1:])
    given = {"name": "many", "axes": names, "entries": entries, "table": table}
    return Manifest(**(given | fields))


def runs_of(sweep: Manifest, count: int | None = None) -> pd.DataFrame:
    """`runs.parquet` with two replicates of each run; the accuracy tells the run."""
    chosen = sweep.entries[:count]
    names = ("final", "last10", "best", "after_server")
    return pd.DataFrame(
        {"run_id": entry.run_id, "replicate": r, "seed": r, "status": "finished"}
        | {"reason": "", "seconds": 1.0, "config.replicates": "2"}
        | dict.fromkeys(names, i / len(sweep.entries) + 0.001 * r)
        for i, entry in enumerate(chosen)
        for r in (0, 1)
    )


def stored(path: Path, sweep: Manifest) -> Store:
    """A folder in which the first runs have ended, with rows of two rounds."""
    store = Store(path)
    store.create()
    store.write_manifest(sweep)
    store.write_runs(runs_of(sweep, FINISHED))
    for entry in sweep.entries[:FINISHED]:
        rows = [
            {"replicate": 0, "seed": 0, "round": t, "kind": "client"}
            | {"cohorts": [[0]], "enforced": [False], "trained": [True]}
            | {"test_accuracy": 0.1 * t, "test_loss": 1.0, "snapshots": 0}
            for t in range(2)
        ]
        end(store, entry.run_id, rows)
    return store


def part_of(sweep: Manifest, most: int = MOST) -> Part:
    entries = aggregate(runs_of(sweep), sweep)
    return Part.of(entries, sweep, Layout.of(sweep), most=most)


def test_an_ordinary_sweep_is_shown_whole_and_nothing_is_said() -> None:
    sweep = grid((10, 10, 10))
    part = part_of(sweep)
    assert part.manifest == sweep and len(part.entries) == 1000
    assert (part.note, part.share) == ("", "")


def test_the_sentence_counts_what_is_shown_and_names_where_the_rest_is() -> None:
    part = part_of(grid())
    assert len(part.manifest.entries) == MOST
    assert part.note == (
        "Shown one by one are the first 1,000 of 1,800 entries; the numbers of all are in "
        "`runs.parquet`, which `raysafl results` filters and sorts."
    )
    ids = [entry.run_id for entry in part.manifest.entries]
    assert part.entries["run_id"].tolist() == ids


@pytest.mark.usefixtures("no_pictures")
def test_the_files_of_a_report_are_bounded_and_say_what_is_left_out(
    tmp_path: Path,
) -> None:
    sweep = grid()
    store = stored(tmp_path / "many", sweep)
    write_report(store)
    part = Part.of(aggregate(store.runs(), sweep), sweep, Layout.of(sweep))
    shown = len(part.manifest.entries)
    table = (store.path / "table.md").read_text()
    every = table.split("## All entries")[1].split("\n## ")[0]
    assert len([line for line in every.splitlines() if line[:3] == "| 0"]) > 0
    assert len([line for line in every.splitlines() if line[:1] == "|"]) == 2 + shown
    page = (store.path / "report.html").read_text()
    assert part.note in table
    assert part.note.split("`")[0] in page and page.count("<tr>") < 2.5 * MOST
    # What summarises the sweep counts all of its runs.
    assert f"{FINISHED} of 1800" in page
    assert f"{1800 - FINISHED} runs of 1800 missing" in table


def test_a_terminal_shows_few_entries_and_says_so() -> None:
    sweep = grid()
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(screen(runs_of(sweep), sweep, 100))
    text = console.export_text()
    assert len(text.splitlines()) < 400
    assert "Shown one by one are the first 300 of 1,800 entries" in " ".join(
        text.split()
    )
