"""Signals, a lost head of Ray, lost output: a sweep ends plainly, and the same command goes on."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import psutil
import pytest
from helpers.chaos import rows
from helpers.commands import RAYSAFL
from helpers.here import run_in_process

from raysafl.runtime.in_process import Worker
from raysafl.storage.ledger import Status
from raysafl.storage.store import Store
from raysafl.sweep.experiment_file import load_sweep

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
SWEEP = """
from raysafl import *
from raysafl.quickstart import BASE

RUN = BASE.replace(rounds={rounds}, replicates=2, eval_every=5)
RUNS = {{
    "momentum": RUN.replace(algorithm=FedAvg(momentum=0.5)),
    "memory": RUN.replace(algorithm=SCAFFOLD()),
    "safari": RUN.replace(algorithm=SAFARI(client_prob=0.7)),
}}
SWEEP = Sweep("signals", {{(name,): run for name, run in RUNS.items()}}, axes=("what",))
"""
# The command on Ray, and in its own process.
COMMAND = ["run", "mine.py", "--out", "out", "--trials", "2", "--cpus", "0.5"]
HERE = ["run", "mine.py", "--out", "out", "--executor", "here"]
# So many that no run ends within the seconds before a signal.
ROUNDS = 1000
PATIENCE = 120
# Ray's agents end by themselves after Ray's other processes were killed. Before that they
# try for up to a minute to tell Ray's head, which may be gone too.
LEFT_SECONDS = 100


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

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*RAYSAFL, *arguments],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.seen: set[psutil.Process] = set()

    def below(self, name: str = "") -> list[psutil.Process]:
        """The processes below the command with this in their command line."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        self.seen |= set(found)
        return [process for process in found if name in title(process)]

    def wait_for(self, name: str) -> psutil.Process:
        """Wait until there is a process with this in its command line."""
        deadline = time.monotonic() + PATIENCE
        while not (found := self.below(name)):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found[0]

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
        _, alive = psutil.wait_procs(self.seen, timeout=LEFT_SECONDS)
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
def command(folder: Path, arguments: list[str] = COMMAND) -> Iterator[Command]:
    """A command that is killed with the block, with all that is below it."""
    made = Command(folder, arguments)
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


def check_goes_on(
    folder: Path, expected: pd.DataFrame, arguments: list[str] = COMMAND
) -> None:
    """The same command ends with the rows of the undisturbed sweep."""
    with command(folder, arguments) as again:
        code, said = again.end()
    assert code == 0, said
    pd.testing.assert_frame_equal(rows(Store(folder / "out")), expected)


def test_each_signal_in_mid_sweep_saves_each_run_and_the_same_command_goes_on(
    folder: Path, expected: pd.DataFrame
) -> None:
    for number, code_due in CODES.items():
        with command(folder) as one:
            one.wait_for("ray::Clients")
            time.sleep(0.5)
            one.process.send_signal(number)
            code, said = one.end()
        assert code == code_due, said
        assert "Traceback" not in said
        assert "Stopped by" in said
        assert "The same command goes on where it was." in said
        check_left(folder)
    check_goes_on(folder, expected)


def test_each_signal_in_a_sweep_in_this_process_saves_each_run_and_it_goes_on(
    folder: Path, expected: pd.DataFrame
) -> None:
    for number, code_due in CODES.items():
        with command(folder, HERE) as one:
            deadline = time.monotonic() + PATIENCE
            while "runs to do" not in one.log.read_text():
                assert time.monotonic() < deadline and one.process.poll() is None
                time.sleep(0.05)
            time.sleep(0.5)
            one.process.send_signal(number)
            code, said = one.end()
        assert code == code_due, said
        assert "Traceback" not in said and "Stopped by" in said
        assert "The same command goes on where it was." in said
        check_left(folder)
        assert Store(folder / "out").checkpoints()
    check_goes_on(folder, expected, HERE)


def test_signals_at_random_moments_lose_and_double_nothing(
    folder: Path, expected: pd.DataFrame, pytestconfig: pytest.Config
) -> None:
    chance = random.Random(pytestconfig.getoption("--chaos-seed"))
    for _ in range(pytestconfig.getoption("--chaos") // 2):
        number = chance.choice(list(CODES))
        with command(folder) as one:
            # Before that, Python itself starts.
            time.sleep(chance.uniform(0.5, 9))
            one.process.send_signal(number)
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0, 1.5))
                one.process.send_signal(chance.choice(list(CODES)))
            code, said = one.end()
        assert code in (0, *CODES.values()) and "Traceback" not in said, said
        check_left(folder)
    check_goes_on(folder, expected)


def test_a_lost_head_of_ray_is_told_with_what_to_do(
    folder: Path, expected: pd.DataFrame
) -> None:
    with command(folder) as first:
        head = first.wait_for("gcs_server")
        first.wait_for("ray::Clients")
        head.kill()
        code, said = first.end()
    assert code == 2, said
    assert "Ray's own process gcs_server" in said and "The same command goes on" in said
    assert "Traceback" not in said
    # Tune's folder stays, as after a kill, until the same command has ended.
    check_goes_on(folder, expected)
    check_left(folder)


def test_a_sweep_whose_output_is_lost_runs_to_its_end(
    folder: Path, expected: pd.DataFrame
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*RAYSAFL, *HERE],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert "the output could not be written: No space left on device" in done.stderr
    pd.testing.assert_frame_equal(rows(Store(folder / "out")), expected)


EXITS = """
import sys
from raysafl import *
from raysafl.quickstart import BASE

class Leaves(FedAvg):
    def round(self, state, ids, key):
        if key.round == 1:
            {how}
        return (yield from super().round(state, ids, key))

SWEEP = Sweep("exits", [BASE.replace(algorithm=Leaves(), rounds=3, replicates=1)])
"""


@pytest.mark.parametrize(
    ("how", "arguments"), [("sys.exit(0)", HERE), ("raise KeyboardInterrupt", COMMAND)]
)
def test_an_algorithm_that_ends_the_program_fails_its_run_with_the_line(
    how: str, arguments: list[str], folder: Path
) -> None:
    (folder / "mine.py").write_text(EXITS.format(how=how))
    with command(folder, arguments) as one:
        code, said = one.end()
    (entry,) = Store(folder / "out").ledger().values()
    assert code == 1 and "Traceback" not in said, said
    assert entry.status is Status.FAILED and "mine.py:9" in entry.reason
    assert os.fspath(folder) not in entry.reason
