"""Ctrl-C and SIGTERM: a sweep ends plainly, and the same command goes on."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pandas as pd
import psutil
import pytest
from helpers.chaos import rows
from helpers.commands import RAYSAFL, call_here
from helpers.here import run_in_process
from helpers.patience import PATIENCE

from raysafl.runtime.in_process import Worker
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep

SWEEP = """
from raysafl import *
from raysafl.algorithms import SCAFFOLD, FedAvgM
from raysafl.quickstart import BASE

RUN = BASE.replace(rounds={rounds}, replicates=2, eval_every=5)
RUNS = {{
    "momentum": RUN.replace(algorithm=FedAvgM(momentum=0.5)),
    "memory": RUN.replace(algorithm=SCAFFOLD()),
    "safari": RUN.replace(algorithm=SAFARI(client_prob=0.7)),
}}
SWEEP = Sweep("signals", {{(name,): run for name, run in RUNS.items()}}, axes=("what",))
"""
COMMAND = ["run", "mine.py", "--out", "out", "--track", "none", "--executor"]
HERE, RAY = ["here"], ["ray", "--trials", "2", "--cpus", "0.5"]
# So many that no run ends within the moment before a signal.
ROUNDS = 1000
# Two processes more than a test needs would import torch.
QUICK = {"RAY_prestart_worker_first_driver": "0"}
T = TypeVar("T")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """The rows of the undisturbed sweep, from this process alone."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "mine.py").write_text(SWEEP.format(rounds=ROUNDS))
    store = Store(folder / "out")
    store.create()
    for run in load_sweep(folder / "mine.py").labelled().values():
        data = run.data.load()
        run_in_process(run, store, Worker(run.cells, data, run.model))
    return rows(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the sweep's experiment file."""
    (tmp_path / "mine.py").write_text(SWEEP.format(rounds=ROUNDS))
    return tmp_path


class Command:
    """`raysafl run` in a process of its own, with all the processes below it."""

    def __init__(self, folder: Path, executor: list[str]) -> None:
        self.manifest = folder / "out" / "manifest.json"
        self.manifest.unlink(missing_ok=True)
        self.executor = executor
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*RAYSAFL, *COMMAND, *executor],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=os.environ | QUICK,
            )
        self.seen: set[psutil.Process] = set()

    def below(self, name: str = "") -> list[psutil.Process]:
        """The processes below the command with this in their command line."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self.seen |= set(found)
        return [process for process in found if name in title(process)]

    def wait_for(self, name: str) -> psutil.Process:
        """Wait until there is a process with this in its command line."""
        return self._wait(lambda: self.below(name))[0]

    def wait_for_manifest(self) -> None:
        """Wait until all checks have passed."""
        self._wait(self.manifest.exists)

    def wait_until_runs_begin(self) -> None:
        """Wait until runs are carried out, or are about to be."""
        self.wait_for_manifest()
        if self.executor == RAY:
            self.wait_for("ray::Clients")

    def _wait(self, look: Callable[[], T]) -> T:
        """Wait until there is what a function looks for, and return it."""
        deadline = time.monotonic() + PATIENCE
        while not (found := look()):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found

    def end(self, patience: float = PATIENCE) -> tuple[int, str]:
        """Wait for the end of the command and of all processes below it.

        Returns:
            Its exit code, and all it printed, as one line.
        """
        deadline = time.monotonic() + patience
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.log.read_text()
            with_suppressed_end(self.below)
            time.sleep(0.05)
        _, alive = psutil.wait_procs(self.seen, timeout=PATIENCE)
        assert not alive, [title(process) for process in alive]
        return self.process.returncode, " ".join(self.log.read_text().split())


def with_suppressed_end(look: object) -> None:
    """Look at the processes of a command that may end meanwhile."""
    try:
        look()  # type: ignore[operator]
    except psutil.NoSuchProcess:
        return


def title(process: psutil.Process) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def command(folder: Path, executor: list[str]) -> Iterator[Command]:
    """A command that is killed with the block, with all that is below it."""
    made = Command(folder, executor)
    try:
        yield made
    finally:
        with_suppressed_end(made.below)
        for process in [made.process, *made.seen]:
            try:
                process.kill()
            except psutil.Error:
                continue
        made.process.wait()


def check_left(folder: Path) -> None:
    """Nothing is left but what resumes: no lock is held, no file is half written."""
    store = Store(folder / "out")
    if not (folder / "out").exists():
        return
    with store.lock():
        left = [file.name for file in (folder / "out").rglob("*.part")]
    assert not left and not (folder / "out" / "tune").exists()
    assert all(entry.status is Status.FINISHED for entry in store.ledger().values())


def check_goes_on(folder: Path, expected: pd.DataFrame) -> None:
    """The same command ends with the rows of the undisturbed sweep."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code, said = call_here(patch, *COMMAND, *HERE)
    assert code == 0, said
    pd.testing.assert_frame_equal(rows(Store(folder / "out")), expected)


@pytest.mark.parametrize(
    ("executor", "numbers"),
    [(HERE, [signal.SIGINT, signal.SIGTERM]), (RAY, [signal.SIGTERM])],
    ids=["here", "ray"],
)
def test_after_each_signal_in_mid_sweep_the_same_command_goes_on(
    executor: list[str],
    numbers: list[signal.Signals],
    folder: Path,
    expected: pd.DataFrame,
) -> None:
    """A signal is told to the driver in one way, whoever carries out the runs."""
    for number in numbers:
        with command(folder, executor) as one:
            one.wait_until_runs_begin()
            time.sleep(0.5)
            one.process.send_signal(number)
            code, said = one.end()
        assert code == 130, said
        assert "Traceback" not in said
        assert "Stopped. The same command goes on where it was." in said
        check_left(folder)
    check_goes_on(folder, expected)


def test_ctrl_c_before_a_run_has_begun_on_ray_ends_at_once_with_one_line(
    folder: Path,
) -> None:
    with command(folder, RAY) as one:
        one.wait_for_manifest()
        time.sleep(0.3)
        one.process.send_signal(signal.SIGINT)
        code, said = one.end()
    line = "Stopped. The same command goes on where it was."
    assert code == 130 and said.endswith(line), said
    assert "stopping" not in said and "Traceback" not in said, said
    assert not (folder / "out" / "report.html").exists()


EXITS = """
import sys
from raysafl import *
from raysafl.quickstart import BASE

class Leaves(FedAvg):
    def round(self, state, ids, key):
        if key.round == 1:
            sys.exit(0)
        return (yield from super().round(state, ids, key))

class Stops(FedAvg):
    def round(self, state, ids, key):
        if key.round == 1:
            raise KeyboardInterrupt
        return (yield from super().round(state, ids, key))

RUN = BASE.replace(rounds=3, replicates=1)
RUNS = {"leaves": RUN.replace(algorithm=Leaves()), "stops": RUN.replace(algorithm=Stops())}
SWEEP = Sweep("exits", {(name,): run for name, run in RUNS.items()}, axes=("what",))
"""


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(
    ("executor", "lines"),
    # In this process, KeyboardInterrupt is what Ctrl-C raises.
    [([*HERE, "--only", "what=leaves"], {"9"}), (RAY, {"9", "15"})],
    ids=["here", "ray"],
)
def test_an_algorithm_that_ends_the_program_fails_its_run_with_the_line(
    executor: list[str],
    lines: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "mine.py").write_text(EXITS)
    monkeypatch.chdir(tmp_path)
    code, said = call_here(monkeypatch, *COMMAND, *executor)
    assert code == 1 and "Traceback" not in said, said
    entries = Store(tmp_path / "out").ledger().values()
    assert {entry.status for entry in entries} == {Status.FAILED}
    reasons = [entry.reason for entry in entries]
    assert {re.search(r"\(mine\.py:(\d+)\)", reason)[1] for reason in reasons} == lines
    assert not any(os.fspath(tmp_path) in reason for reason in reasons)
