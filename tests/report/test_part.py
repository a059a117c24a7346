"""Reports of sweeps of very many entries: what they show, what they leave out and say."""

import io
import itertools
from pathlib import Path

import pandas as pd
import pytest
from helpers.made import end
from rich.console import Console

from raysafl.report.analysis.numbers import MOST, Numbers
from raysafl.report.pages.screen import screen
from raysafl.report.pages.sections import share_text
from raysafl.report.write import write_report
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.store import Store

SIZES = (60, 6, 5)
FINISHED = 40


def grid(sizes: tuple[int, ...] = SIZES) -> Manifest:
    """A grid of numbered labels on the axes a, b, c, of which the last goes across."""
    keys = itertools.product(*map(range, sizes))
    entries = [
        Entry(run_id=f"{i:012x}", labels=dict(zip("abc", key, strict=True)))
        for i, key in enumerate(keys)
    ]
    table = Table(rows=["a", "b"], columns=["c"])
    return Manifest(name="many", axes=[*"abc"], entries=entries, table=table)


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


def test_an_ordinary_sweep_is_shown_whole_and_nothing_is_said() -> None:
    sweep = grid((10, 10, 10))
    numbers = Numbers.of(runs_of(sweep), sweep)
    assert numbers.shown == sweep and len(numbers.shown_entries) == 1000
    assert numbers.share == share_text(numbers) == ""


@pytest.mark.usefixtures("no_pictures")
def test_the_files_of_a_report_are_bounded_and_say_what_is_left_out(
    tmp_path: Path,
) -> None:
    store = stored(tmp_path / "many", grid())
    write_report(store)
    note = "Shown one by one are the first 1,000 of 1,800 entries; the numbers of all are in "
    table = (store.path / "table.md").read_text()
    every = table.split("## All entries")[1].split("\n## ")[0]
    assert len([line for line in every.splitlines() if line[:1] == "|"]) == 2 + MOST
    page = (store.path / "report.html").read_text()
    assert note in table
    assert note in page and page.count("<tr>") < 2.5 * MOST
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
