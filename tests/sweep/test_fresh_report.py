"""The report of a finished sweep shows what the sweep is now, and is not made in vain."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.folders import contents, finished
from helpers.pictures import without_pictures

from raysafl import Runner, Sweep, Table
from raysafl.quickstart import BASE
from raysafl.report import write
from raysafl.storage.store import Store

pytestmark = pytest.mark.usefixtures("reports")
SHOWN = ("table.md", "report.html", "curves.png", "heatmap.png")


RUN = BASE.replace(rounds=2, replicates=2)
RUNS = {
    (method, s): RUN.replace({"participation.s": s, "local.lr": lr})
    for method, lr in (("FedAvg", 0.1), ("lazy", 0.01))
    for s in (0, 2)
}
SWEEP = Sweep("tiny", RUNS, axes=("method", "s"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished sweep, with its report."""
    folder = tmp_path_factory.mktemp("results") / "tiny"
    with without_pictures():
        return finished(SWEEP, folder, report=True).path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of the finished sweep."""
    return shutil.copytree(whole, tmp_path / "tiny")


def again(sweep: Sweep, folder: Path) -> None:
    outcome = Runner(sweep, out=folder, track="none", quiet=True).run()
    assert outcome.ok and outcome.skipped == len(sweep.runs)


def shown(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SHOWN}


EDITS: dict[str, dict[str, Any]] = {
    "table": {"table": Table(rows=["s"], columns=["method"], statistic="best")},
    "title": {"title": "Another"},
    "notes": {"notes": "A new note."},
    "labels": {"runs": {(f"{method}!", s): run for (method, s), run in RUNS.items()}},
}
# What figures show.
DRAWN = ("table", "title", "labels")


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_sweep_gets_a_new_table_page_and_figures(
    edit: str, folder: Path
) -> None:
    before = shown(folder)
    again(replace(SWEEP, **EDITS[edit]), folder)
    after = shown(folder)
    texts = {"table.md", "report.html"}
    changed = {name for name in SHOWN if before[name] != after[name]}
    assert texts <= changed and (edit in DRAWN) == bool(changed - texts)
    # They are what `raysafl report` makes of the folder.
    write.write_report(Store(folder))
    assert shown(folder) == after


def test_a_report_of_an_unchanged_sweep_is_not_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again(SWEEP, folder)
    before = contents(folder)
    made = list[Store]()
    monkeypatch.setattr(write, "write_report", made.append)
    again(SWEEP, folder)
    assert not made and contents(folder) == before


@pytest.mark.parametrize("name", ["table.md", "report.html"])
def test_a_missing_table_or_page_is_made_again(name: str, folder: Path) -> None:
    before = shown(folder)
    (folder / name).unlink()
    again(SWEEP, folder)
    assert shown(folder) == before


@pytest.mark.parametrize(
    "writes", [1, 4, *(pytest.param(n, marks=pytest.mark.acceptance) for n in (2, 3))]
)
def test_a_driver_killed_between_two_files_of_a_report_leaves_no_mixture(
    writes: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the edit is then taken back, so that an old page would seem to fit."""
    before = shown(folder)
    left = list(range(writes))

    def killed(path: Path, content: bytes) -> None:
        left.pop()
        path.write_bytes(content)
        if not left:
            raise KeyboardInterrupt

    table = Table(rows=["s"], columns=["method"], statistic="best")
    with monkeypatch.context() as patch:
        patch.setattr(write, "atomic_write", killed)
        with pytest.raises(KeyboardInterrupt):
            again(replace(SWEEP, table=table, title="Another"), folder)
    again(SWEEP, folder)
    assert shown(folder) == before


def test_a_report_that_a_killed_driver_left_behind_its_runs_is_made_again(
    folder: Path, tmp_path: Path
) -> None:
    """The driver was killed after the last run, before it wrote the report again."""
    first = replace(SWEEP, runs=dict(list(RUNS.items())[:1]))
    part = finished(first, tmp_path / "part", report=True).path
    for name in ("table.md", "report.html"):
        shutil.copy(part / name, folder / name)
    again(SWEEP, folder)
    assert b"lazy" in (folder / "table.md").read_bytes()
    assert b"lazy" in (folder / "report.html").read_bytes()
