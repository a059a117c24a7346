"""Run jobs in fresh processes of one thread each, and measure their time and memory."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

import psutil

from raysafl.bench.job import Job

THREADS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
SAMPLE_SECONDS = 0.2
# Seconds that a child process may take to end after it has sent its result.
PATIENCE = 60.0


@dataclass(frozen=True)
class Result:
    """The measurements of one job: seconds of each round, final accuracy, peak memory."""

    seconds: list[float]
    accuracy: float | None
    peak_rss_mb: (
        # Largest sum of resident memory over the process and its descendants.
        float
    )
    more: Mapping[str, Any]


class Child:
    """A process that does one job (see `raysafl.bench.child`) and ends with its `with` block.

    Args:
        job: the job.
        seconds: how long the process may live; None: as long as it takes.
    """

    def __init__(self, job: Job, seconds: float | None = None) -> None:
        self.job = job
        self.seconds = seconds
        self.late = False
        self.errors: IO[str] = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "raysafl.bench.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, **THREADS, **job.env},
        )
        self._alarm = threading.Timer(seconds or 0, self._end_late)
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
        self.process.stdout.close()
        self.errors.close()


@contextmanager
def peak_memory(*pids: int) -> Iterator[list[float]]:
    """Sample the resident memory of processes while the block runs.

    Yields:
        The largest resident memory in MB of each process with its descendants, so far.
    """
    peaks = [0.0 for _ in pids]
    over = threading.Event()

    def watch() -> None:
        while True:
            for i, pid in enumerate(pids):
                peaks[i] = max(peaks[i], tree_memory(pid))
            if over.wait(SAMPLE_SECONDS):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


def tree_memory(pid: int) -> float:
    """Return the resident memory in MB of a process and its descendants.

    It is 0 if the process has ended. Memory that processes share counts once for each.
    """
    total = 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0.0
    for process in tree:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 1e6


def together(jobs: Sequence[Job], seconds: float | None = None) -> list[Result]:
    """Do jobs at the same time, each in a fresh process; they start when all are ready.

    Args:
        jobs: the jobs.
        seconds: how long all of it may take; None: as long as it takes.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(Child(job, seconds)) for job in jobs]
        peaks = stack.enter_context(
            peak_memory(*(child.process.pid for child in children))
        )
        for child in children:
            child.hear()
        for child in children:
            child.tell("go")
        answers = [child.hear() for child in children]
    return [
        _result(job, answer, peak)
        for job, answer, peak in zip(jobs, answers, peaks, strict=True)
    ]


def _result(job: Job, answer: dict[str, Any], peak: float) -> Result:
    """Return an answer of a process as a result."""
    more = {k: v for k, v in answer.items() if k not in ("seconds", "accuracy")}
    return Result(
        answer["seconds"], answer["accuracy"], peak, {"what": job.what, **more}
    )


def in_turns(
    jobs: Mapping[str, Job], repeats: int, seconds: float
) -> Iterator[dict[str, Result]]:
    """Measure jobs in turn, each in one process that goes on where it was.

    So a process starts and loads its data once, while the others wait. Every other turn
    goes backwards. The turns end early if one more would not fit into the time.

    Args:
        jobs: the jobs by name, each with at least `repeats` turns.
        repeats: the number of turns.
        seconds: how long all of it may take.

    Yields:
        The results of one turn, by name.
    """
    ends = time.monotonic() + seconds
    with ExitStack() as stack:
        children = {
            name: stack.enter_context(Child(job, seconds)) for name, job in jobs.items()
        }
        peaks = stack.enter_context(
            peak_memory(*(child.process.pid for child in children.values()))
        )
        for child in children.values():
            child.hear()
        longest = 0.0
        for repeat in range(repeats):
            began = time.monotonic()
            if began + longest > ends:
                return
            answers: dict[str, Any] = {}
            for name in list(children)[:: -1 if repeat % 2 else 1]:
                children[name].tell("go")
                answers[name] = children[name].hear()
            yield {
                name: _result(child.job, answers[name], peak)
                for (name, child), peak in zip(children.items(), peaks, strict=True)
            }
            longest = max(longest, time.monotonic() - began)


def pieces(job: Job, seconds: float) -> Iterator[dict[str, Any]]:
    """Do a job whose result comes in pieces, in a fresh process; yield each piece.

    Args:
        job: the job.
        seconds: how long it may take.
    """
    with Child(job, seconds) as child:
        child.hear()
        child.tell("go")
        while (piece := child.hear()) is not None:
            yield piece


def interleaved(
    kinds: Mapping[str, Sequence[Job]], repeats: int, say: Callable[[str], None]
) -> dict[str, list[list[Result]]]:
    """Measure several kinds of jobs in turn, `repeats` times each.

    Every other turn goes backwards, so that no kind is always measured after another
    one on a machine that slows down.

    Args:
        kinds: for each kind, the jobs that are done at the same time.
        repeats: the number of turns.
        say: is told about each measurement, in words.

    Returns:
        For each kind, the results of its jobs in each turn.
    """
    results: dict[str, list[list[Result]]] = {name: [] for name in kinds}
    for repeat in range(repeats):
        for name in list(kinds)[:: -1 if repeat % 2 else 1]:
            done = together(kinds[name])
            results[name].append(done)
            spent = max(sum(result.seconds) for result in done)
            say(f"{name} [{repeat + 1}/{repeats}]: {spent:.2f} s measured")
    return results


def median(values: Sequence[float]) -> float:
    """Return the median of some numbers as a float."""
    return float(statistics.median(values))


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the turns' ratios above / below.

    What changes slowly and affects all of one turn cancels out in that turn's ratio.
    """
    return median([a / b for a, b in zip(above, below, strict=True)])
