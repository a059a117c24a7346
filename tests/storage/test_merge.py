"""Folders of one sweep put together: `raysafl merge`."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.commands import RAYSAFL, call_here, checked_output
from helpers.pictures import without_pictures
from helpers.sweeps_here import go

from raysafl import PerClient, Sweep, load_model
from raysafl.quickstart import BASE
from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.store import Store
from raysafl.storage.verify import verify


def seeds(first: int = 0, number: int = 4, **changes: Any) -> Sweep:
    """Two runs of three rounds, with some of their seeds."""
    run = BASE.replace(
        rounds=3,
        replicates=number,
        seed=first,
        keep="last",
        eval_clients=PerClient(on="labels", every=2),
        **changes,
    )
    runs = {(lr,): run.replace({"local.lr": lr}) for lr in (0.1, 0.2)}
    return Sweep("seeds", runs, axes=("lr",))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of the seeds 0 to 2 and 2 to 3 of a sweep, and of all of them."""
    folder = tmp_path_factory.mktemp("seeds")
    with without_pictures():
        go(seeds(0, 3), folder / "a", keep_states=True)
        go(seeds(2, 2), folder / "b", keep_states=True)
        go(seeds(), folder / "whole")
    return folder


@pytest.fixture
def folders(made: Path, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Copies of these folders, which a test may change."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "a", tmp_path / "b", tmp_path / "whole"


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def raysafl(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Returns the exit code of a command, and what it printed as one line."""

    def call(*arguments: object) -> tuple[int, str]:
        code, said = call_here(monkeypatch, *map(str, arguments))
        return code, " ".join(said.split())

    return call


def merged(raysafl: Command, *folders: Path) -> tuple[int, str, Store]:
    out = folders[0].parent / "merged"
    return *raysafl("merge", *folders, "--out", out), Store(out)


def shared_cell(a: Path, b: Path) -> str:
    """One of the two cells that both folders have, of seed 2."""
    return min(Store(a).ledger().keys() & Store(b).ledger().keys())


@pytest.mark.usefixtures("reports")
def test_the_seeds_of_two_folders_are_those_of_the_whole_in_any_order(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, whole = folders
    due = Store(whole)
    for first, second in ((a, b), (b, a)):
        code, said, both = merged(raysafl, first, second)
        assert code == 0 and "8 cells; 0 cells of the sweep are still to be" in said
        for own, other in (
            (both.rounds(), due.rounds()),
            (both.clients(), due.clients()),
            (both.runs(), due.runs()),
        ):
            unlike = ["seconds", "started", "ended", "sweep"]
            pd.testing.assert_frame_equal(
                own.drop(columns=unlike, errors="ignore"),
                other.drop(columns=unlike, errors="ignore"),
            )
        assert verify(both) == [] and len(both.files("states")) == 8
        for entry in both.manifest().entries:
            load_model(both.path, entry.run_id, replicate=3)
        assert len(both.files("rounds")) == len(both.files("clients")) == 1
        assert (both.path / "report.html").is_file()
        # It goes on as a sweep.
        outcome, _ = go(seeds(), both.path)
        assert outcome.ok and outcome.skipped == 2
        shutil.rmtree(both.path)


def test_other_settings_and_other_sweeps_are_refused_and_a_gap_is_to_be_computed(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    a, b, whole = folders
    others = {
        "rounds": (seeds(eval_every=2), "lr=0.1, with other settings"),
        "name": (
            Sweep("other", [BASE.replace(rounds=2, replicates=1)]),
            "hold different sweeps: the name is 'seeds' in one and 'other'",
        ),
    }
    for name, (sweep, why) in others.items():
        go(sweep, a.parent / name)
        code, said, both = merged(raysafl, a, a.parent / name)
        assert code == 2 and why in said and not both.path.exists()
    code, said, both = merged(raysafl, a, a.parent / "b" / ".." / "a")
    assert code == 2 and "two folders or more, each of them once" in said
    assert not both.path.exists()
    code, said = raysafl("merge", a, b, "--out", whole)
    assert code == 2 and "holds a sweep already" in said
    go(seeds(5, 1), a.parent / "gap")
    code, said, both = merged(raysafl, a, a.parent / "gap")
    assert code == 0 and "8 cells; 4 cells of the sweep are still" in said


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_cell_is_taken_from_where_it_finished_undamaged(
    folders: tuple[Path, Path, Path], raysafl: Command, order: tuple[int, int]
) -> None:
    a, b, _ = folders
    damaged = shared_cell(a, b)
    due = Store(b).ledger()
    failed = max(Store(a).ledger().keys() & due.keys())
    Store(a).model(damaged).unlink()
    nothing = (t.slice(0, 0) for t in Store(a).results()[1:3])
    Store(a).take([CellEnd.now(failed, Status.FAILED, "no memory")], *nothing)
    code, said, both = merged(raysafl, *(folders[k] for k in order))
    assert code == 0 and "8 cells" in said and verify(both) == []
    for cell in (damaged, failed):
        assert both.ledger()[cell].ended == due[cell].ended
        assert both.ledger()[cell].status is Status.FINISHED


def test_a_folder_that_is_written_to_is_not_merged(
    folders: tuple[Path, Path, Path], raysafl: Command
) -> None:
    store, out = Store(folders[0]), folders[0].parent / "merged"
    with store.lock():
        code, said = raysafl("merge", store.path, folders[1], "--out", out)
    assert code == 2 and "another raysafl process is writing to" in said
    assert not Store(out).ledger()


def test_the_script_of_a_job_array_merges_the_parts_beside_mlflow_s_files(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    parts = tmp_path / "study" / "parts"
    (parts / "mlartifacts").mkdir(parents=True)
    (parts / "mlflow.db").touch()
    for k, folder in enumerate(folders[:2], 1):
        folder.rename(parts / f"{k}-of-2")
    program = tmp_path / "raysafl"
    program.write_text(f"#!/bin/sh\nexec {RAYSAFL[0]} -c '{RAYSAFL[2]}' \"$@\"\n")
    program.chmod(0o755)
    script = Path(__file__).parents[2] / "deploy" / "slurm_array.sh"
    path = f"{tmp_path}:{os.environ['PATH']}"
    said = checked_output(
        ["bash", script, "study.py", tmp_path / "study"],
        env={**os.environ, "PATH": path},
    )
    assert "8 cells; 0 cells" in said
    assert len(Store(tmp_path / "study" / "whole").ledger()) == 8
