"""Storage whose flock is missing, or has no locks to give."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import EXPERIMENT, call_here

from raysafl.storage.paths import is_held
from raysafl.storage.store import Store

RUN = ("run", "mine.py", "--track", "none", "--executor", "here")


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an experiment file, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    text = EXPERIMENT.replace("rounds=20", "rounds=2")
    (tmp_path / "mine.py").write_text(text)
    return tmp_path


def refuse_flock(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Let flock answer as it does where a folder lies on such storage."""
    flock = fcntl.flock

    def answered(file: Any, how: int) -> None:
        number_of_file = file if isinstance(file, int) else file.fileno()
        if Path(os.readlink(f"/proc/self/fd/{number_of_file}")).is_relative_to(folder):
            raise OSError(number, os.strerror(number))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", answered)


@pytest.mark.usefixtures("reports")
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_without_flock_a_sweep_runs_and_its_status_and_results_are_shown(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_flock(monkeypatch, experiment, errno.ENOSYS)
    code, said = call_here(monkeypatch, *RUN)
    assert code == 0, said
    store = Store(experiment / "results" / "mine")
    with store.lock():
        code, said = call_here(monkeypatch, "status", str(store.path))
        assert code == 0 and "running" in said and is_held(store.path / ".lock")
    code, said = call_here(monkeypatch, "results", "", str(store.path))
    assert code == 0 and "SAFARI" in said
    assert not is_held(store.path / ".lock")


def test_storage_that_gives_no_locks_is_refused_and_nothing_is_left_there(
    experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        refuse_flock(patch, experiment, errno.ENOLCK)
        code, said = call_here(monkeypatch, *RUN)
    assert code == 2, said
    assert "results/mine (No locks available); choose another folder" in said
    assert not (experiment / "results").exists()
