"""Run jobs in fresh processes of one thread each, take turns, and take medians."""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

import psutil

from benchmarks.job import Job
from benchmarks.workloads import steady_rounds
from raysafl.core.text import nearest
from raysafl.simulation.run import Run

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
THREADS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
SAMPLE_SECONDS = 0.2
# Seconds that a child process may take to end after it has sent its result.
PATIENCE = 60.0


def progress(line: str) -> None:
    """Say on the error output what has been done."""
    print(line, file=sys.stderr, flush=True)


def chosen(only: Sequence[str], known: Sequence[str], repeats: int = 1) -> list[str]:
    """Return the names that are asked for, in their usual order; without any, all.

    Raises:
        ValueError: a name is unknown, or `repeats` is below 1.
    """
    for name in only:
        if name not in known:
            raise ValueError(f"nothing is called '{name}' here: {nearest(name, known)}")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    return [name for name in known if not only or name in only]


@dataclass(frozen=True)
class Result:
    """The measurements of one job.

    Attributes:
        seconds: of each round, or of the whole.
        accuracy: the last one, if the model was evaluated.
        peak_rss_mb: the largest sum of resident memory of the process and its
            descendants.
        more: whatever else the job tells.
    """

    seconds: list[float]
    accuracy: float | None
    peak_rss_mb: float
    more: Mapping[str, Any] = field(default_factory=dict)


class Child:
    """A process that does one job (see `benchmarks.child`) and ends with its `with` block.

    Args:
        job: the job.
        seconds: how long the process may live; None: as long as it takes.
    """

    def __init__(self, job: Job, seconds: float | None = None) -> None:
        self.job = job
        self.seconds = seconds
        self.late = False
        self.errors: IO[str] = tempfile.TemporaryFile("w+")
        # Behind what is there, which may stand for other modules.
        paths = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
        path = os.pathsep.join(filter(None, paths))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **THREADS, **job.env},
        )
        self._open = ExitStack()
        self.peak = self._open.enter_context(peak_memory(self.process.pid))
        self._alarm = threading.Timer(seconds or 0, self._end_late)
        self._alarm.daemon = True
        if seconds is not None:
            self._alarm.start()
        self.tell(job.to_json())

    def _end_late(self) -> None:
        """End the process because its time is over."""
        self.late = True
        self.process.kill()

    def tell(self, line: str) -> None:
        """Send one line to the process."""
        assert self.process.stdin is not None
        # If the process has died, `hear` reports it with the reason.
        with suppress(BrokenPipeError):
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def hear(self) -> Any:
        """Wait for the next answer of the process and return it.

        Raises:
            ValueError: the job could not be done; the message is its reason.
            TimeoutError: the process took too long and was ended.
            RuntimeError: the process ended without an answer; the message has the end
                of what it printed.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line and self.late:
            raise TimeoutError(
                f"'{self.job.what}' took longer than the {self.seconds:.0f} s that it had"
            )
        if not line:
            self.errors.seek(0)
            printed = self.errors.read()[-2000:]
            raise RuntimeError(
                f"the process that measures '{self.job.what}' died:\n{printed}"
            )
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def result(self) -> Result:
        """Wait for the measurements of the job and return them."""
        more = self.hear()
        return Result(
            more.pop("seconds"), more.pop("accuracy", None), self.peak[0], more
        )

    def turn(self) -> Result:
        """Let the process do its job once, or once more; return the measurements."""
        self.tell("go")
        return self.result()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self._alarm.cancel()
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        if kind is not None:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._open.close()
        self.process.stdout.close()
        self.errors.close()


@contextmanager
def repeatedly(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call a function in a thread, at once and every so many seconds, while the block runs."""
    over = threading.Event()

    def watch() -> None:
        look()
        while not over.wait(seconds):
            look()

    watcher = threading.Thread(target=watch, name=look.__name__, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


@contextmanager
def peak_memory(pid: int) -> Iterator[list[float]]:
    """Yield the largest resident memory in MB so far of a process and its descendants."""
    peak = [0.0]

    def memory() -> None:
        peak[0] = max(peak[0], tree_memory(pid))

    with repeatedly(memory, SAMPLE_SECONDS):
        yield peak


def tree_memory(pid: int) -> float:
    """Return the resident memory in MB of a process and its descendants.

    It is 0 if the process has ended. Memory that processes share counts once for each.
    """
    total = 0
    with suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                total += process.memory_info().rss
    return total / 1e6


def together(jobs: Sequence[Job], seconds: float | None = None) -> list[Result]:
    """Do jobs at the same time, each in a fresh process; they start when all are ready."""
    with ready(dict(enumerate(jobs)), seconds) as children:
        for child in children.values():
            child.tell("go")
        return [child.result() for child in children.values()]


@contextmanager
def ready(jobs: Mapping[Any, Job], seconds: float | None) -> Iterator[dict[Any, Child]]:
    """Start a process for each job, and wait until all are ready to begin."""
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(Child(job, seconds)) for name, job in jobs.items()
        }
        for child in children.values():
            child.hear()
        yield children


def turns(
    actions: Mapping[str, Callable[[], T]], repeats: int, seconds: float = math.inf
) -> Iterator[dict[str, T]]:
    """Measure several things in turn, `repeats` times each; yield each turn's results by name.

    Every other turn goes backwards, so that nothing is always measured after another
    thing on a machine that slows down. The turns end early if one more would not fit
    into the seconds.
    """
    ends = time.monotonic() + seconds
    longest = 0.0
    for repeat in range(repeats):
        began = time.monotonic()
        if began + longest > ends:
            return
        found: dict[str, T] = {}
        for name in list(actions)[:: -1 if repeat % 2 else 1]:
            before = time.monotonic()
            found[name] = actions[name]()
            spent = time.monotonic() - before
            progress(f"{name} [{repeat + 1}/{repeats}]: {spent:.1f} s")
        yield {name: found[name] for name in actions}
        longest = max(longest, time.monotonic() - began)


def kept_in_turns(
    jobs: Mapping[str, Job], repeats: int, seconds: float
) -> Iterator[dict[str, list[Result]]]:
    """Measure jobs in turn, each in one process that goes on where it was.

    So a process starts and loads its data once, while the others wait. After each turn
    the results of all turns so far are yielded by name.
    """
    ends = time.monotonic() + seconds
    results: dict[str, list[Result]] = {name: [] for name in jobs}
    with ready(jobs, seconds) as children:
        actions = {name: child.turn for name, child in children.items()}
        for turn in turns(actions, repeats, ends - time.monotonic()):
            for name, result in turn.items():
                results[name].append(result)
            yield results


def interleaved(
    kinds: Mapping[str, Sequence[Job]], repeats: int
) -> dict[str, list[list[Result]]]:
    """Measure several kinds of jobs in turn, each time in fresh processes.

    The jobs of a kind are done at the same time; their results are returned by kind, then
    by turn.
    """
    actions = {name: partial(together, jobs) for name, jobs in kinds.items()}
    taken = list(turns(actions, repeats))
    return {name: [turn[name] for turn in taken] for name in kinds}


def pieces(job: Job, seconds: float) -> Iterator[dict[str, Any]]:
    """Do a job whose result comes in pieces, in a fresh process that may live so long."""
    with Child(job, seconds) as child:
        child.hear()
        child.tell("go")
        while (piece := child.hear()) is not None:
            yield piece


def seconds_per_round(run: Run, results: Sequence[Sequence[Result]]) -> list[float]:
    """Return the mean seconds of a steady round in each turn, of the slowest process."""
    steady = steady_rounds(run)
    return [
        max(statistics.fmean(result.seconds[steady]) for result in side_by_side)
        for side_by_side in results
    ]


def seconds_by_name(
    run: Run, results: Mapping[str, Sequence[Result]]
) -> dict[str, list[float]]:
    """Return the mean seconds of a steady round in each turn, by name."""
    return {
        name: seconds_per_round(run, [[result] for result in taken])
        for name, taken in results.items()
    }


def against_plain(run: Run, results: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """Compare `ours` with `plain`; others that took turns get numbers by their own names."""
    seconds = seconds_by_name(run, results)
    last = {name: taken[-1] for name, taken in results.items()}
    found: dict[str, Any] = {
        "speedup_vs_plain": ratio(seconds["plain"], seconds["ours"]),
        "engine": last["ours"].more["engine"],
    }
    for prefix, name in (("", "ours"), ("plain_", "plain")):
        memory = [result.peak_rss_mb for result in results[name]]
        found |= {
            f"{prefix}seconds_per_round": median(seconds[name]),
            f"{prefix}accuracy": last[name].accuracy,
            f"{prefix}peak_rss_mb": median(memory),
            f"{prefix}device_mb": last[name].more["device_mb"],
        }
    for name in seconds.keys() - {"ours", "plain"}:
        found[name] = {
            "speedup_vs_plain": ratio(seconds["plain"], seconds[name]),
            "speedup_of_ours": ratio(seconds[name], seconds["ours"]),
            "engine": last[name].more["engine"],
            "seconds_per_round": median(seconds[name]),
            "accuracy": last[name].accuracy,
        }
    return found | {"repeats": seconds}


def median(values: Sequence[float]) -> float:
    """Return the median of some numbers as a float."""
    return float(statistics.median(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the turns' ratios above / below.

    What changes slowly and affects all of one turn cancels out in that turn's ratio.
    """
    return median([a / b for a, b in zip(above, below, strict=True)])
