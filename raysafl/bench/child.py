"""A process that is measured: it prepares, waits for a signal, does one job and reports.

It is started as `python -m raysafl.bench.child` and reads a `Job` as one line of JSON.
It answers `ready`, waits for another line, and prints its result as one line of JSON.
"""

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from raysafl.core.component import Component
from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation

# One round; the test accuracy if it was evaluated.
Step = Callable[[], float | None]


class Job(Component):
    """What a process measures: one of

    - plain: the plain loop, as process `part` of `parts`;
    - ours: raysafl in this process, `Simulation` with `Worker`;
    - actors: raysafl on `actors` Ray actors;
    - sweep: the runs as a sweep on Ray with logging, as `raysafl run` does, `trials` at a time;
    - bare: the runs one after another in this process, without Ray or logging.
    """

    what: Literal["plain", "ours", "actors", "sweep", "bare"]
    runs: list[Run] = Field(min_length=1)
    env: dict[str, str] = Field(default_factory=dict)
    part: int = 0
    parts: int = 1
    actors: int = Field(default=1, gt=0)
    trials: int = Field(default=1, gt=0)
    engine: str = "auto"


@contextmanager
def plain_loop(job: Job) -> Iterator[Step]:
    """Provide the rounds of the plain loop."""
    from raysafl.bench.plain import PlainLoop

    run = job.runs[0]
    yield PlainLoop(run, run.data.load(), part=job.part, parts=job.parts).step


@contextmanager
def rounds_in_process(job: Job) -> Iterator[Step]:
    """Provide the rounds of raysafl in this process."""
    from raysafl.runtime import Worker

    run = job.runs[0]
    size = run.local.batch_size
    work = Worker(run.cells, run.data.load(), run.model, "cpu", job.engine, size)
    yield _stepper(Simulation(run, work))


@contextmanager
def on_actors(job: Job) -> Iterator[Step]:
    """Provide the rounds of raysafl on client actors, without trials or logging."""
    import ray

    from raysafl.runtime import Hardware
    from raysafl.runtime.messages import PackSetup
    from raysafl.runtime.on_actors import host_pack, start_actors
    from raysafl.runtime.ray_session import ray_session

    run = job.runs[0]
    with ray_session(None):
        ref = ray.put(run.data.load())
        size = run.local.batch_size
        setup = PackSetup(run.cells, ref, run.model, job.engine, size)
        actors = start_actors(Hardware(actors=job.actors))
        work, _, _ = host_pack(actors, setup)
        yield _stepper(Simulation(run, work))


def _stepper(simulation: Simulation) -> Step:
    def step() -> float | None:
        records = simulation.step()
        return _mean([r.test_accuracy for r in records]) if records else None

    return step


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def time_rounds(step: Step, count: int) -> dict[str, Any]:
    """Time `count` rounds; return the seconds of each, and the last accuracy."""
    seconds = []
    accuracy = None
    for _ in range(count):
        began = time.perf_counter()
        now = step()
        seconds.append(time.perf_counter() - began)
        accuracy = accuracy if now is None else now
    return {"seconds": seconds, "accuracy": accuracy}


def time_bare_runs(job: Job) -> dict[str, Any]:
    """Time all runs together, with data loaded once; return the mean final accuracy as well."""
    from raysafl.runtime import Worker

    began = time.perf_counter()
    finals = list[float]()
    datasets: dict[str, Dataset] = {}
    for run in job.runs:
        if run.data.source_key not in datasets:
            datasets[run.data.source_key] = run.data.load()
        dataset = datasets[run.data.source_key]
        simulation = Simulation(run, Worker(run.cells, dataset, run.model))
        records = list[Record]()
        while not simulation.done:
            records = simulation.step() or records
        finals.append(_mean([record.test_accuracy for record in records]))
    return {"seconds": [time.perf_counter() - began], "accuracy": _mean(finals)}


def time_sweep(job: Job) -> dict[str, Any]:
    """Time a sweep from the start of Ray to the report; return the driver's memory as well."""
    from raysafl.runtime import Hardware
    from raysafl.sweep.definition import Sweep
    from raysafl.sweep.runner import Runner

    whole = Sweep(
        "bench", runs={(str(i),): run for i, run in enumerate(job.runs)}, axes=("run",)
    )
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        _memory(Path(folder), len(job.runs)) as memory,
    ):
        hardware = Hardware(actors=job.actors, trials=job.trials)
        outcome = Runner(whole, Path(folder) / "bench", hardware, quiet=True).run()
        seconds = time.perf_counter() - began
    if not outcome.ok:
        raise ValueError(
            f"{outcome.missing} runs are missing, {len(outcome.bad)} are bad"
        )
    final = float(outcome.runs["final"].mean())
    return {"seconds": [seconds], "accuracy": final, "driver_rss_mb": memory}


@contextmanager
def _memory(folder: Path, runs: int) -> Iterator[dict[str, int]]:
    """Note this process's resident memory at three moments while the block runs.

    Yields:
        MB after a quarter of the runs have ended, after all have ended (each within
        half a second), and at the end of the block, after the report.
    """
    import psutil

    out = dict[str, int]()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            ended = len(list(folder.glob("*/ledger/*.json")))
            for moment, count in (("quarter", runs / 4), ("trials", runs)):
                if ended >= count:
                    out.setdefault(
                        moment, round(psutil.Process().memory_info().rss / 1e6)
                    )

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield out
    finally:
        over.set()
        watcher.join()
        for moment in ("quarter", "trials", "report"):
            out.setdefault(moment, round(psutil.Process().memory_info().rss / 1e6))


# Jobs that are timed round by round, and jobs that are timed as a whole.
STEPS: Mapping[str, Any] = {
    "plain": plain_loop,
    "ours": rounds_in_process,
    "actors": on_actors,
}
WHOLE: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "bare": time_bare_runs,
    "sweep": time_sweep,
}


def do_job(job: Job, say: Callable[[Any], None]) -> None:
    """Do a job, then continue with further rounds until the input is closed.

    So processes that are measured at the same time keep each other busy until all are
    done.

    Args:
        job: the job.
        say: sends an answer to the process that measures.
    """
    with ExitStack() as stack:
        step: Step | None = None
        if job.what in STEPS:
            step = stack.enter_context(STEPS[job.what](job))
        say("ready")
        sys.stdin.readline()
        say(time_rounds(step, job.runs[0].rounds) if step else WHOLE[job.what](job))
        stopped = threading.Thread(target=sys.stdin.read, daemon=True)
        stopped.start()
        while stopped.is_alive():
            if step and job.parts > 1:
                step()
            else:
                stopped.join()


def run_child() -> None:
    """Do the job that the input names; answer on the real standard output.

    Whatever else is printed goes to the error output.
    """
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(what: Any) -> None:
        print(json.dumps(what), file=channel)

    try:
        do_job(Job.from_json(sys.stdin.readline()), say)
    except ValueError as error:
        say({"error": str(error)})


if __name__ == "__main__":
    run_child()
