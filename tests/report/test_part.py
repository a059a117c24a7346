"""Reports of sweeps of very many entries: what they show, what they leave out and say."""

import io
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.made import save
from helpers.reports import markdown
from rich.console import Console
from scipy import stats

from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.part import MOST, Part, thinned
from raysafl.report.pages.comparison import write_comparison
from raysafl.report.pages.document import Lines
from raysafl.report.pages.screen import screen
from raysafl.report.pages.sections import LINES, losses
from raysafl.report.query import MOST_ROWS, as_table
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
        save(store, entry.run_id, rows)
    return store


def part_of(sweep: Manifest, most: int = MOST) -> Part:
    entries = aggregate(runs_of(sweep), sweep)
    return Part.of(entries, sweep, Layout.of(sweep), most=most)


def test_a_part_of_a_grid_is_a_grid_with_both_ends_of_its_longest_axes() -> None:
    keys = list(itertools.product(range(100), "xyz", range(10)))
    found = thinned(keys, 300)
    firsts, letters, numbers = (
        sorted(set(labels)) for labels in zip(*found, strict=True)
    )
    assert found == list(itertools.product(firsts, letters, numbers))
    assert letters == list("xyz") and numbers == list(range(10))
    assert len(firsts) == 10 and (firsts[0], firsts[-1]) == (0, 99)
    assert set(np.diff(np.array(firsts, int))) == {11}


@pytest.mark.parametrize("most", [1, 2, 7, 300, 999, 1000])
def test_a_part_has_at_most_so_many_entries_and_not_much_fewer(most: int) -> None:
    found = thinned(list(itertools.product(range(40), range(25), range(2))), most)
    assert most / 4 <= len(found) <= most
    assert found == sorted(set(found))


def test_labels_that_were_drawn_are_thinned_along_the_list() -> None:
    draws = np.random.default_rng(0).random((5000, 3))
    keys = [tuple(map(float, draw)) for draw in draws]
    places = [keys.index(key) for key in thinned(keys, 1000)]
    assert len(places) == 1000 and (places[0], places[-1]) == (0, 4999)
    assert set(np.diff(places).tolist()) <= {4, 5, 6}


def test_an_ordinary_sweep_is_shown_whole_and_nothing_is_said() -> None:
    sweep = grid((10, 10, 10))
    part = part_of(sweep)
    assert part.manifest is sweep and len(part.entries) == 1000
    assert (part.note, part.share) == ("", "")


def test_the_sentence_counts_what_is_shown_and_names_where_the_rest_is() -> None:
    part = part_of(grid())
    shown = len(part.manifest.entries)
    values = len({entry.labels["a"] for entry in part.manifest.entries})
    assert shown == 30 * values <= MOST < shown + 30
    assert part.note == (
        f"Shown one by one are {shown} of 1,800 entries, evenly spaced ({values} of 60 values "
        "of a); the numbers of all are in `runs.parquet`, which `raysafl results` filters "
        "and sorts."
    )
    ids = [entry.run_id for entry in part.manifest.entries]
    assert part.entries["run_id"].tolist() == ids


def test_a_table_that_would_be_almost_empty_has_one_line_per_entry() -> None:
    draws = np.random.default_rng(0).random((200, 2))
    sweep = of_keys(["a", "b"], [tuple(map(float, draw)) for draw in draws])
    text = markdown(runs_of(sweep), sweep)
    table = text.split("## All entries")[0].splitlines()
    lines = [line for line in table if line.startswith("|")]
    assert len(lines) == 2 + 200 and max(map(len, lines)) < 100


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
    assert "of 1,800 entries, evenly spaced" in " ".join(text.split())


def bad_ends(runs: pd.DataFrame, sweep: Manifest) -> list[str]:
    _, found = losses(Numbers.of(runs, sweep))
    assert isinstance(found, Lines)
    return list(found.lines)


def test_runs_that_ended_badly_are_listed_up_to_a_number() -> None:
    sweep = grid((400, 1))
    runs = runs_of(sweep).assign(status="failed", reason="no memory")
    lines = bad_ends(runs, sweep)
    assert len(lines) == LINES + 1
    assert lines[-1] == "and 100 more lines: runs.parquet has all"
    known = sweep.replace(entries=sweep.entries[:LINES])
    lines = bad_ends(runs[: 2 * LINES], known)
    assert len(lines) == LINES and "more" not in lines[-1]


def test_results_in_a_terminal_are_the_first_ones_and_the_caption_says_so() -> None:
    found = pd.DataFrame({"run_id": [f"{i:012x}" for i in range(1500)], "final": 0.5})
    table = as_table(found)
    assert table.row_count == MOST_ROWS
    assert "the first 1,000 of 1,500 rows" in str(table.caption)
    assert str(as_table(found[:1000]).caption).startswith("1000 rows")


@pytest.mark.usefixtures("no_pictures")
def test_a_comparison_of_large_sweeps_shows_some_of_their_entries(
    tmp_path: Path,
) -> None:
    stores = [stored(tmp_path / name, grid()) for name in ("one", "two")]
    table, _ = write_comparison(stores, tmp_path)
    text = table.read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert 500 < len(lines) <= 2 + MOST
    assert "1800 of 1800 entries are in every sweep" in text
    assert f"{len(lines) - 2} of 1,800 entries are shown, evenly spaced" in text


@pytest.mark.usefixtures("no_pictures")
def test_a_comparison_has_welchs_interval_of_means_over_partitions(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(4)
    samples, stores = [], []
    for name in ("one", "two"):
        store = stored(tmp_path / name, grid((2, 1)))
        # Four seeds of each of three partitions, whose means differ much.
        means = rng.normal(0.5, 0.1, 3)
        runs = pd.DataFrame(
            {"run_id": e.run_id, "replicate": r, "seed": r, "partition_seed": r % 3}
            | {"status": "finished", "reason": "", "final": means[r % 3] + 0.001 * r}
            | dict.fromkeys(("last10", "best", "after_server"), np.nan)
            for e in store.manifest().entries
            for r in range(12)
        )
        store.write_runs(runs)
        own = runs[runs["run_id"] == runs["run_id"][0]].groupby("partition_seed")
        samples.append(100 * own["final"].mean())
        stores.append(store)
    two = stats.ttest_ind(*samples[::-1], equal_var=False).confidence_interval(0.95)
    table, _ = write_comparison(stores, tmp_path)
    gap, half = (two.high + two.low) / 2, (two.high - two.low) / 2
    assert f"| {gap:+.2f} ± {half:.2f} |" in table.read_text()
