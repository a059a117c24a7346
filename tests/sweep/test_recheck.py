"""`raysafl recheck`, on a real small sweep with classes of its user's own."""

import shutil
from pathlib import Path

import pytest
from helpers.commands import call_here
from helpers.pictures import without_pictures

from raysafl.storage.store import Store

MINE = """
from dataclasses import replace

import raysafl as fl
from raysafl.quickstart import BASE


class Rechecked(fl.Algorithm):
    \"\"\"The server goes a part of the way.\"\"\"

    rate: float = 0.5

    def round(self, state, ids, key):
        update = yield fl.TrainMean(state.w_P, ids)
        if self.rate > 1:
            raise RuntimeError("too fast")
        return replace(state, w_P=state.w_P - self.rate * update.delta_P)


base = BASE.replace(rounds=3, replicates=2, algorithm=Rechecked())
SWEEP = fl.Sweep("mine", axes=["rate"], runs={
    (rate,): base.replace({"algorithm.rate": rate}) for rate in (0.5, 1.0, 2.0)
})
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment file, and its results in `out`."""
    folder = tmp_path_factory.mktemp("rechecked")
    (folder / "mine.py").write_text(MINE)
    with pytest.MonkeyPatch.context() as patch, without_pictures():
        patch.chdir(folder)
        options = ["--executor", "here", "--track", "none", "--no-try", "-q"]
        code, said = call_here(patch, "run", "mine.py", "--out", "out", *options)
        assert code == 1 and "too fast" in said  # one of its runs fails
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, which is the working directory."""
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


def recheck(patch: pytest.MonkeyPatch, *more: str) -> tuple[int, str]:
    """Compute runs of the folder again, in this process."""
    options = ["--file", "mine.py", "--executor", "here", *more]
    return call_here(patch, "recheck", "out", *options)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its content."""
    every = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in every}


def test_finished_runs_are_computed_again_with_equal_bits_and_the_folder_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(folder / "out")
    code, said = recheck(monkeypatch, "-n", "5")
    assert code == 0, said
    told = sorted(said.splitlines())
    assert told == ["rate=0.5: equal, bit by bit", "rate=1: equal, bit by bit"]
    assert files(folder / "out") == before


def test_rows_that_the_code_does_not_give_are_told_with_their_columns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = MINE.replace("state.w_P - self.rate", "state.w_P - 0.1 * self.rate")
    (folder / "mine.py").write_text(slower)
    code, said = recheck(monkeypatch)
    assert code == 1
    assert "rate=1: other test_accuracy by up to 0." in said and "test_loss" in said


def test_what_holds_no_finished_run_is_refused_and_a_missing_folder_is_not_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, said = call_here(monkeypatch, "recheck", "none")
    assert code == 2 and "holds no sweep" in said and not (folder / "none").exists()
    store = Store(folder / "out")
    store.forget(None)
    code, said = recheck(monkeypatch)
    assert code == 2 and "out holds no finished run" in said
