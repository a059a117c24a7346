"""A process that is measured: it prepares, waits for a signal, does one job and reports.

It is started as `python -m raysafl.bench.child` and reads a `Job` as one line of JSON.
It answers `ready`, waits for another line, and prints its result as one line of JSON.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from raysafl.bench.watch import driver_memory, watched_actors
from raysafl.core.component import Component
from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.core.work import Cell, Work
from raysafl.simulation.lockstep import Lockstep
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation

# One round of all runs; the mean test accuracy if it was evaluated.
Step = Callable[[], float | None]
# What the installed command runs.
RAYSAFL = (sys.executable, "-c", "from raysafl.cli.start import main; main()")
# An experiment file of one run.
FILE = """
from raysafl import Run, Sweep

SWEEP = Sweep("start", runs={{(0,): Run.from_json({run!r})}}, axes=("run",))
"""


class Job(Component):
    """What a process measures: one of

    - plain: the plain loop of the first run, as process `part` of `parts`;
    - ours: raysafl in this process, `Simulation` with `Worker`;
    - actors: raysafl on `actors` Ray actors;
    - sweep: the runs as a sweep on Ray with logging, as `raysafl run` does, `trials` at a time;
    - bare: the runs one after another in this process, without Ray or logging;
    - start: the command `raysafl run` for the first run, in a fresh folder.

    Several runs of `ours` and `actors` advance in lock-step, as one pack. In place of
    each run, `copies` runs are measured that differ from it in their seeds.
    """

    what: Literal["plain", "ours", "actors", "sweep", "bare", "start"]
    runs: list[Run] = Field(min_length=1)
    copies: int = Field(default=1, gt=0)
    env: dict[str, str] = Field(default_factory=dict)
    part: int = 0
    parts: int = 1
    actors: int = Field(default=1, gt=0)
    trials: int = Field(default=1, gt=0)
    engine: str = "auto"

    def all_runs(self) -> list[Run]:
        """Return the runs with their copies."""
        return [
            run.replace(seed=run.seed + copy * run.replicates)
            for run in self.runs
            for copy in range(self.copies)
        ]


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

    runs = job.all_runs()
    first = runs[0]
    size = first.local.batch_size
    dataset = first.data.load()
    work = Worker(
        _cells(runs),
        dataset,
        first.model,
        engine=job.engine,
        batch_size=size,
        objective=first.objective,
    )
    yield _stepper(runs, work)


@contextmanager
def on_actors(job: Job) -> Iterator[Step]:
    """Provide the rounds of raysafl on client actors, without trials or logging."""
    import ray

    from raysafl.runtime import Hardware
    from raysafl.runtime.messages import PackSetup
    from raysafl.runtime.on_actors import host_pack, start_actors
    from raysafl.runtime.ray_session import ray_session

    runs = job.all_runs()
    first = runs[0]
    with ray_session(None):
        ref = ray.put(first.data.load())
        size = first.local.batch_size
        setup = PackSetup(
            _cells(runs),
            ref,
            first.model,
            job.engine,
            size,
            objective=first.objective,
        )
        actors = start_actors(Hardware(actors=job.actors))
        work, _, _ = host_pack(actors, setup)
        yield _stepper(runs, work)


def _cells(runs: Sequence[Run]) -> list[Cell]:
    """Return the cells of all runs, one run after the other."""
    return [cell for run in runs for cell in run.cells]


def _stepper(runs: Sequence[Run], work: Work) -> Step:
    """Return a function that advances runs on the same work by one round."""
    pack: dict[int, Simulation] = {}
    first_cell = 0
    for number, run in enumerate(runs):
        pack[number] = Simulation(run, work, first_cell)
        first_cell += run.replicates
    lockstep = Lockstep[int](work)

    def step() -> float | None:
        records = list[Record]()
        for outcome in lockstep.advance(pack).values():
            if isinstance(outcome, BaseException):
                raise outcome
            records += outcome
        return _mean(_accuracies(records)) if records else None

    return step


def _accuracies(records: Sequence[Record]) -> list[float]:
    """Return the test accuracies; the workloads are classifications."""
    return [r.test_accuracy for r in records if r.test_accuracy is not None]


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
    for run in job.all_runs():
        if run.data.source_key not in datasets:
            datasets[run.data.source_key] = run.data.load()
        dataset = datasets[run.data.source_key]
        work = Worker(run.cells, dataset, run.model, objective=run.objective)
        simulation = Simulation(run, work)
        records = list[Record]()
        while not simulation.done:
            records = simulation.step() or records
        finals.append(_mean(_accuracies(records)))
    return {"seconds": [time.perf_counter() - began], "accuracy": _mean(finals)}


def time_sweep(job: Job) -> dict[str, Any]:
    """Time a sweep from its definition to its report, and `raysafl report` after it.

    Returns:
        seconds and accuracy; the driver's memory (see `driver_memory`); the number of
        files that the sweep leaves, MLflow's included; the share of the time in which
        the client actors were busy (see `Busy`); and the seconds of the report.
    """
    from raysafl.runtime import Hardware
    from raysafl.sweep.definition import Sweep
    from raysafl.sweep.runner import Runner

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bench"
        began = time.perf_counter()
        runs = {(str(i),): run for i, run in enumerate(job.all_runs())}
        whole = Sweep("bench", runs=runs, axes=("run",))
        with (
            driver_memory(out, len(runs)) as memory,
            watched_actors(job.trials * job.actors) as busy,
        ):
            hardware = Hardware(actors=job.actors, trials=job.trials)
            outcome = Runner(whole, out, hardware, quiet=True).run()
            seconds = time.perf_counter() - began
        if not outcome.ok:
            raise ValueError(
                f"{outcome.missing} runs are missing, {len(outcome.bad)} are bad"
            )
        files = sum(file.is_file() for file in Path(folder).rglob("*"))
        return {
            "seconds": [seconds],
            "accuracy": float(outcome.runs["final"].mean()),
            "driver_rss_mb": memory,
            "files": files,
            "busy": busy.share,
            "rounds_seconds": busy.seconds,
            "report_seconds": time_command("report", str(out)),
        }


def time_start(job: Job) -> dict[str, Any]:
    """Time `raysafl run` for one run, from the command to the prompt."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "start.py"
        file.write_text(FILE.format(run=job.runs[0].to_json()))
        return {
            "seconds": [time_command("run", str(file), folder=folder)],
            "accuracy": None,
        }


def time_command(*arguments: str, folder: str | None = None) -> float:
    """Return the seconds that a command of raysafl takes in a process of its own.

    Args:
        arguments: what follows `raysafl`.
        folder: the working directory.

    Raises:
        ValueError: the command failed.
    """
    began = time.perf_counter()
    done = subprocess.run(
        [*RAYSAFL, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise ValueError(f"raysafl {arguments[0]} failed: {done.stdout[-2000:]}")
    return seconds


# Jobs that are timed round by round, and jobs that are timed as a whole.
STEPS: Mapping[str, Any] = {
    "plain": plain_loop,
    "ours": rounds_in_process,
    "actors": on_actors,
}
WHOLE: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    "bare": time_bare_runs,
    "sweep": time_sweep,
    "start": time_start,
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
