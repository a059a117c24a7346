"""A process that is measured: it prepares, waits for a signal, does one job and reports.

It is started as `python -m benchmarks.child` and reads a `Job` as one line of JSON.
It answers `ready`, waits for another line, and prints its result as one line of JSON.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.device import peak_device_mb, wait_for
from benchmarks.gpu_jobs import PIECES
from benchmarks.job import Job
from benchmarks.plain import PlainLoop
from benchmarks.rounds import (
    Pack,
    Rounds,
    time_rounds,
    work_on_actors,
)
from benchmarks.shared_data import load
from benchmarks.watch import client_actors, resident_mib
from benchmarks.whole import WHOLE
from raysafl.core.work import Tasks, Training
from raysafl.simulation.lifting import ClientTable
from raysafl.simulation.replicates import Replicates
from raysafl.simulation.run import Run
from raysafl.sweep.simulate import worker_of


@contextmanager
def plain_loop(job: Job) -> Iterator[Rounds]:
    """Provide the rounds of the plain loop."""
    run = job.runs[0]
    dataset = load(run)
    loop = PlainLoop(run, dataset, part=job.part, parts=job.parts, device=job.device)
    yield Rounds(loop.step)


@contextmanager
def in_process(job: Job) -> Iterator[Rounds]:
    """Provide the rounds of raysafl in this process.

    The facts are in MiB: the memory, and how much of it came after the data.
    """
    runs = job.all_runs()
    dataset = load(runs[0])
    before = resident_mib()
    began = time.perf_counter()
    work = worker_of(runs, dataset, job.engine, job.device)
    pack = Pack(runs, work)
    prepared = time.perf_counter() - began

    def facts() -> dict[str, Any]:
        memory = resident_mib()
        return {
            "ready": prepared,
            "memory": memory,
            "grown": memory - before,
            "parameters": work.trainer.model.num_parameters,
        }

    yield Rounds(pack.step, work.trainer.engine_name, facts)


@contextmanager
def on_actors(job: Job) -> Iterator[Rounds]:
    """Provide the rounds of raysafl on client actors, without trials or logging.

    The facts are the memory of this process and of the actors in MiB, and the bytes of
    a message, by run.
    """
    from raysafl.cluster.hardware import Hardware
    from raysafl.cluster.ray_session import ray_session

    runs = job.all_runs()
    hardware = Hardware(actors=job.actors)
    with (
        ray_session(None),
        work_on_actors(runs, hardware, job.engine) as (work, engine),
    ):
        before = resident_mib()

        def facts() -> dict[str, Any]:
            memory = resident_mib()
            actors = sum(process.memory_info().rss for process in client_actors())
            return {
                "memory": memory,
                "grown": memory - before,
                "actor": actors / 2**20,
                "header": header_bytes(runs, work) / len(runs),
                "parameters": work.model.num_parameters,
            }

        yield Rounds(Pack(runs, work).step, engine, facts)


def header_bytes(runs: Sequence[Run], work: Any) -> int:
    """Return the bytes of a round's message to an only actor, without parameters."""
    from raysafl.runtime.client_actor import packed

    simulations = Pack(runs, work).simulations.values()
    members = [own for one in simulations for own in one.replicates]
    table = ClientTable(work.model.num_parameters)
    group = Replicates(members, table, is_lifted=True)
    group.go_on(None)
    tasks = Tasks.of([one for one in group.requests if isinstance(one, Training)])
    sent = packed(replace(tasks, starts=[], offsets=[], moments=[]))
    return len(sent if isinstance(sent, bytes) else sent[0])


# Jobs that are timed round by round.
STEPS: dict[str, Callable[[Job], AbstractContextManager[Rounds]]] = {
    "plain": plain_loop,
    "ours": in_process,
    "actors": on_actors,
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
    """Time as many rounds as the job asks for; return also engine, memory and facts."""
    wait = partial(wait_for, job.device)
    return {
        **time_rounds(rounds.step, job.runs[0].rounds, job.seconds, wait),
        "engine": rounds.engine,
        "device_mb": peak_device_mb(job.device),
        **rounds.facts(),
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
