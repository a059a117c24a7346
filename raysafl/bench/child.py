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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raysafl.bench.device import peak_device_mb, wait_for
from raysafl.bench.device_jobs import PIECES
from raysafl.bench.job import Job
from raysafl.bench.rounds import (
    Rounds,
    Step,
    accuracies,
    cells_of,
    mean,
    rounds_of,
    stepper,
)
from raysafl.bench.watch import driver_memory, watched_actors
from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.simulation.simulation import Simulation

# What the installed command runs.
RAYSAFL = (sys.executable, "-c", "from raysafl.cli.start import main; main()")
# An experiment file of one run.
FILE = """
from raysafl import Run, Sweep

SWEEP = Sweep("start", runs={{(0,): Run.from_json({run!r})}}, axes=("run",))
"""


@contextmanager
def plain_loop(job: Job) -> Iterator[Rounds]:
    """Provide the rounds of the plain loop."""
    from raysafl.bench.plain import PlainLoop

    run = job.runs[0]
    loop = PlainLoop(
        run, run.data.load(), part=job.part, parts=job.parts, device=job.device
    )
    yield Rounds(loop.step)


@contextmanager
def rounds_in_process(job: Job) -> Iterator[Rounds]:
    """Provide the rounds of raysafl in this process."""
    runs = job.all_runs()
    yield rounds_of(runs, runs[0].data.load(), job.device, job.engine)


@contextmanager
def on_actors(job: Job) -> Iterator[Rounds]:
    """Provide the rounds of raysafl on client actors, without trials or logging."""
    import ray

    from raysafl.runtime.hardware import Hardware
    from raysafl.runtime.messages import PackSetup
    from raysafl.runtime.on_actors import host_pack, start_actors
    from raysafl.runtime.ray_session import ray_session

    runs = job.all_runs()
    first = runs[0]
    with ray_session(None):
        ref = ray.put(first.data.load())
        size = first.local.batch_size
        setup = PackSetup(
            cells_of(runs),
            ref,
            first.model,
            job.engine,
            size,
            objective=first.objective,
        )
        actors = start_actors(Hardware(actors=job.actors))
        work, _, _ = host_pack(actors, setup)
        yield Rounds(stepper(runs, work))


def time_rounds(step: Step, count: int, device: str = "cpu") -> dict[str, Any]:
    """Time `count` rounds; return the seconds of each, and the last accuracy.

    A round has ended when the device has done what it was told.
    """
    seconds = []
    accuracy = None
    for _ in range(count):
        began = time.perf_counter()
        now = step()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
        accuracy = accuracy if now is None else now
    return {"seconds": seconds, "accuracy": accuracy}


def time_bare_runs(job: Job) -> dict[str, Any]:
    """Time all runs together, with data loaded once; return the mean final accuracy as well."""
    from raysafl.runtime.in_process import Worker

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
        finals.append(mean(accuracies(records)))
    return {"seconds": [time.perf_counter() - began], "accuracy": mean(finals)}


def time_sweep(job: Job) -> dict[str, Any]:
    """Time a sweep from its definition to its report, and `raysafl report` after it.

    Returns:
        seconds and accuracy; the driver's memory (see `driver_memory`); the number of
        files that the sweep leaves, MLflow's included; the share of the time in which
        the client actors were busy (see `Busy`); and the seconds of the report.
    """
    from raysafl.runtime.hardware import Hardware
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
    done. A job whose result comes in pieces sends each as it is known, and None after
    the last one.

    Args:
        job: the job.
        say: sends an answer to the process that measures.
    """
    with ExitStack() as stack:
        rounds: Rounds | None = None
        if job.what in STEPS:
            rounds = stack.enter_context(STEPS[job.what](job))
        say("ready")
        for _ in range(job.turns):
            if not sys.stdin.readline():
                return
            if job.what in PIECES:
                for piece in PIECES[job.what](job):
                    say(piece)
                say(None)
            else:
                say(time_steps(job, rounds) if rounds else WHOLE[job.what](job))
        stopped = threading.Thread(target=sys.stdin.read, daemon=True)
        stopped.start()
        while stopped.is_alive():
            if rounds and job.parts > 1:
                rounds.step()
            else:
                stopped.join()


def time_steps(job: Job, rounds: Rounds) -> dict[str, Any]:
    """Time as many rounds as the job's run has; return also engine and memory."""
    return {
        **time_rounds(rounds.step, job.runs[0].rounds, job.device),
        "engine": rounds.engine,
        "device_mb": peak_device_mb(job.device),
    }


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
