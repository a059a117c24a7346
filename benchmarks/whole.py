"""Jobs that are timed as a whole: sweeps, commands, and packs beside each other.

Each runs in a process of its own (see `benchmarks.child`).
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.job import Job
from benchmarks.rounds import WARM, Pack, time_rounds, work_on_actors
from benchmarks.watch import driver_memory, resident_mib, watched_actors
from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run
from raysafl.sweep.simulate import worker_of

# What the installed command runs.
RAYSAFL = (sys.executable, "-c", "from raysafl.cli.start import main; main()")
# An experiment file of one run.
FILE = """
from raysafl import Run, Sweep

SWEEP = Sweep("start", runs={{(0,): Run.from_json({run!r})}}, axes=("run",))
"""
Told = dict[str, Any]


def time_bare_runs(job: Job) -> Told:
    """Time all runs together, with data loaded once; return the mean final accuracy as well."""
    began = time.perf_counter()
    finals = list[float]()
    datasets: dict[str, Dataset] = {}
    for run in job.all_runs():
        if run.data.source_key not in datasets:
            datasets[run.data.source_key] = run.data.load()
        work = worker_of([run], datasets[run.data.source_key])
        done = time_rounds(Pack([run], work).step, run.rounds)
        finals.append(done["accuracy"])
    seconds = [time.perf_counter() - began]
    return {"seconds": seconds, "accuracy": statistics.fmean(finals)}


@contextmanager
def done_sweep(
    runs: Sequence[Run], hardware: Mapping[str, Any], track: Any = "auto", **more: Any
) -> Iterator[tuple[Told, Any]]:
    """Carry out a sweep in a folder of its own, which is there until the block ends.

    Args:
        runs: the runs.
        hardware: the fields of `Hardware`.
        track: what is logged to MLflow.
        more: further arguments of the `Sweep`.

    Yields:
        What was measured, and the sweep's outcome. `seconds` are those from the
        definition to the report, and `processor` the driver's; `memory` is the driver's
        in MiB. `files` and `bytes` are what the sweep's folder holds, and `all_files`
        has MLflow's as well. `driver_rss_mb` is what `driver_memory` notes; `busy` is
        the share of `rounds_seconds` in which client actors computed (see `Busy`).
    """
    from raysafl.cluster.hardware import Hardware
    from raysafl.sweep.definition import Sweep
    from raysafl.sweep.runner import Runner

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results" / "bench"
        has = Hardware(**hardware)
        began = time.perf_counter()
        used = time.process_time()
        labelled = {(str(i),): run for i, run in enumerate(runs)}
        whole = Sweep("bench", runs=labelled, axes=("run",), **more)
        actors = (has.trials or 1) * has.actors
        cells = sum(run.replicates for run in runs)
        with driver_memory(out, cells) as memory, watched_actors(actors) as busy:
            outcome = Runner(
                whole, out, has, executor="ray", quiet=True, track=track
            ).run()
            seconds = time.perf_counter() - began
        used = time.process_time() - used
        if not outcome.ok:
            raise ValueError(
                f"{outcome.missing} runs are missing, {len(outcome.bad)} are bad"
            )
        sizes = [file.stat().st_size for file in out.rglob("*") if file.is_file()]
        told = {
            "seconds": [seconds],
            "accuracy": float(outcome.runs["final"].mean()),
            "processor": used,
            "memory": resident_mib(),
            "files": len(sizes),
            "bytes": sum(sizes),
            "all_files": sum(file.is_file() for file in Path(folder).rglob("*")),
            "driver_rss_mb": memory,
            "busy": busy.share,
            "rounds_seconds": busy.seconds,
        }
        yield told, outcome


def time_sweep(job: Job) -> Told:
    """Time a sweep, and `raysafl report` after it."""
    hardware = {"actors": job.actors, "trials": job.trials}
    with done_sweep(job.all_runs(), hardware) as (told, outcome):
        out = outcome.store.path
        return {**told, "report_seconds": time_command("report", str(out))}


def time_trials(job: Job) -> Told:
    """Time a sweep as `raysafl run` does it; then what MLflow takes, from its files.

    `sync` are the seconds and `database` the bytes of a fresh database of MLflow's; `row`
    are the bytes of a row in memory.
    """
    from raysafl.tracking.client import connect as ping
    from raysafl.tracking.tracker import sync

    with done_sweep(job.all_runs(), {}) as (told, outcome):
        rows = outcome.store.rounds()
        root = outcome.store.path.parent
        uri = f"sqlite:///{root}/fresh.db"
        # This makes its tables.
        ping(uri)
        began = time.perf_counter()
        sync(root, uri, lambda message: None)
        return {
            **told,
            "sync": time.perf_counter() - began,
            "database": (root / "fresh.db").stat().st_size,
            "row": float(rows.memory_usage(deep=True).sum() / len(rows)),
        }


def time_reports(job: Job) -> Told:
    """Time a sweep that reports every round to Tune, as every scheduler has it."""
    from ray.tune.schedulers import FIFOScheduler

    more = {"scheduler": FIFOScheduler(), "metric": "test_accuracy", "mode": "max"}
    with done_sweep(job.all_runs(), {}, "none", **more) as (told, _):
        return told


def time_start(job: Job) -> Told:
    """Time `raysafl run` for one run, from the command to the prompt."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "start.py"
        file.write_text(FILE.format(run=job.runs[0].to_json()))
        return {"seconds": [time_command("run", str(file), folder=folder)]}


def time_command(*arguments: str, folder: str | None = None) -> float:
    """Return the seconds that `raysafl` with these arguments takes, in a folder."""
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


class Coordinator:
    """A pack in a process of its own, as a trial has it, with one client actor."""

    def __init__(self, runs: Sequence[Run], data: Any) -> None:
        import torch

        from raysafl.cluster.hardware import Hardware

        torch.set_num_threads(1)
        self.runs = runs
        self.hosted = work_on_actors(runs, Hardware(cpus=0.2), data=data[0])
        work, _ = self.hosted.__enter__()
        self.pack = Pack(runs, work)

    def rounds(self, seconds: float | None) -> list[float]:
        """Time rounds for so long; return the seconds of each."""
        rounds = self.runs[0].rounds
        took: list[float] = time_rounds(self.pack.step, rounds, seconds)["seconds"]
        return took

    def end(self) -> None:
        """End the client actor."""
        self.hosted.__exit__(None, None, None)


def time_packs_at_once(job: Job) -> Told:
    """Time packs that have nothing in common but the machine; the slowest one counts."""
    import ray

    from raysafl.cluster.ray_session import ray_session

    runs = job.all_runs()
    size = len(runs) // job.parts
    with ray_session(None):
        # A list, as Ray would replace a reference that is an argument by its object.
        data = [ray.put(runs[0].data.load())]
        start: Any = ray.remote(Coordinator).options(num_cpus=0).remote
        hosts = [start(runs[k * size :][:size], data) for k in range(job.parts)]
        # All are ready before one begins.
        ray.get([host.__ray_ready__.remote() for host in hosts])
        took = ray.get([host.rounds.remote(job.seconds) for host in hosts])
        ray.get([host.end.remote() for host in hosts])
        for host in hosts:
            ray.kill(host)
    each = [statistics.median(seconds[WARM:]) for seconds in took]
    slowest = took[each.index(max(each))]
    return {"seconds": slowest, "each": each, "memory": resident_mib(), "size": size}


WHOLE: Mapping[str, Callable[[Job], Told]] = {
    "bare": time_bare_runs,
    "sweep": time_sweep,
    "trials": time_trials,
    "reports": time_reports,
    "start": time_start,
    "at_once": time_packs_at_once,
}
