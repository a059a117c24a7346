"""The report of a finished sweep shows what the sweep is now, and is not made in vain."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.folders import contents, finished

from raysafl import Claim, Run, Runner, Sweep, Table
from raysafl.report import write
from raysafl.storage.paths import Location
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep import runner as driver

SHOWN = ("table.md", "report.html", "curves.png", "heatmap.png")


@pytest.fixture
def sweep(tiny: Run) -> Sweep:
    runs = {
        (method, s): tiny.replace({"participation.s": s, "local.lr": lr})
        for method, lr in (("FedAvg", 0.1), ("lazy", 0.01))
        for s in (0, 2)
    }
    return Sweep("tiny", runs, axes=("method", "s"))


def again(sweep: Sweep, folder: Path) -> None:
    outcome = Runner(sweep, out=folder, track=False, quiet=True).run()
    assert outcome.ok and outcome.skipped == len(sweep.runs)


def shown(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SHOWN}


def renamed(sweep: Sweep) -> dict[Any, Run]:
    return {(f"{method}'", s): run for (method, s), run in sweep.labelled().items()}


EDITS: dict[str, tuple[Callable[[Sweep], dict[str, Any]], set[str]]] = {
    "table": (
        lambda sweep: {
            "table": Table(rows=["s"], columns=["method"], statistic="best")
        },
        {"table.md", "report.html", "heatmap.png"},
    ),
    "claims": (
        lambda sweep: {"claims": [Claim(text="it is high", least=99.0)]},
        {"table.md", "report.html"},
    ),
    "title": (lambda sweep: {"title": "Another"}, {"table.md", "report.html"}),
    "notes": (lambda sweep: {"notes": "A new note."}, {"table.md", "report.html"}),
    "paper": (
        lambda sweep: {"paper": {("lazy", 2): (12.0, None)}},
        {"table.md", "report.html"},
    ),
    "labels": (lambda sweep: {"runs": renamed(sweep)}, set(SHOWN)),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_sweep_gets_a_new_table_page_and_figures(
    edit: str, sweep: Sweep, tmp_path: Path
) -> None:
    changes, changed = EDITS[edit]
    finished(sweep, tmp_path / "a", report=True)
    before = shown(tmp_path / "a")
    edited = replace(sweep, **changes(sweep))
    again(edited, tmp_path / "a")
    after = shown(tmp_path / "a")
    assert {name for name in SHOWN if before[name] != after[name]} == changed
    # It is the report that the edited sweep has from the beginning.
    finished(edited, tmp_path / "b", report=True)
    assert {**after, "report.html": b""} == {
        **shown(tmp_path / "b"),
        "report.html": b"",
    }


def test_a_report_of_an_unchanged_sweep_is_not_made_again(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(sweep, tmp_path, report=True)
    before = contents(tmp_path)
    made = list[Store]()
    monkeypatch.setattr(driver, "write_report", made.append)
    again(sweep, tmp_path)
    after = contents(tmp_path)
    assert not made and {**before, tmp_path / ".lock": b""} == after


@pytest.mark.parametrize("name", ["table.md", "report.html"])
def test_a_missing_table_or_page_is_made_again(
    name: str, sweep: Sweep, tmp_path: Path
) -> None:
    finished(sweep, tmp_path, report=True)
    before = shown(tmp_path)
    (tmp_path / name).unlink()
    again(sweep, tmp_path)
    assert shown(tmp_path) == before


@pytest.mark.parametrize("writes", range(1, 5))
def test_a_driver_killed_between_two_files_of_a_report_leaves_no_mixture(
    writes: int, sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the edit is then taken back, so that an old page would seem to fit."""
    finished(sweep, tmp_path, report=True)
    before = shown(tmp_path)
    left = list(range(writes))

    def killed(path: Location, content: bytes) -> None:
        left.pop()
        path.write_bytes(content)
        if not left:
            raise KeyboardInterrupt

    table = Table(rows=["s"], columns=["method"], statistic="best")
    with monkeypatch.context() as patch:
        patch.setattr(write, "atomic_write", killed)
        with pytest.raises(KeyboardInterrupt):
            again(replace(sweep, table=table, title="Another"), tmp_path)
    again(sweep, tmp_path)
    assert shown(tmp_path) == before


def test_a_report_that_a_killed_driver_left_behind_its_runs_is_made_again(
    sweep: Sweep, tmp_path: Path
) -> None:
    """The driver was killed after the last run, before it wrote the report again."""
    first = dict(list(sweep.labelled().items())[:1])
    finished(replace(sweep, runs=first), tmp_path / "a", report=True)
    old = (tmp_path / "a" / "table.md").read_bytes()
    finished(sweep, tmp_path / "a")
    assert (tmp_path / "a" / "table.md").read_bytes() == old
    again(sweep, tmp_path / "a")
    assert b"lazy" in (tmp_path / "a" / "table.md").read_bytes()
    write_runs_table(Store(tmp_path / "a"))
    assert write.is_current(Store(tmp_path / "a"))
