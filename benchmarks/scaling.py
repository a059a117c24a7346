"""How raysafl scales: clients, population, model, replicates, trials, actors, packs, reports.

    python benchmarks/scaling.py                            all axes, medians of 3
    python benchmarks/scaling.py --only population clients  these axes only
    python benchmarks/scaling.py --smoke --out DIR          small, on embedded digits

Each point is a fresh process with one torch thread: a few rounds to warm up, then
rounds for `--seconds`, of which the median counts; a point is the median over
`--repeats` processes, taken in turns so that a noisy minute does not fall on one point.
Writes scaling.json (every process), scaling.md and scaling.png into `--out`. Needs
MNIST ($RAYSAFL_DATA) unless --smoke.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysafl import (
    MLP,
    Digits,
    FedAvg,
    Federation,
    FslEmnistNet,
    LocalTraining,
    Logistic,
    Mnist,
    Model,
    Overlapping,
    Run,
    Uniform,
)

HERE = Path(__file__).resolve().parent
MODELS: dict[str, Model] = {
    "logistic": Logistic(),
    "MLP 32": MLP(hidden=[32]),
    "MLP 128": MLP(hidden=[128]),
    "MLP 512": MLP(hidden=[512]),
    "MLP 1766": MLP(hidden=[1766]),
    "FslEmnistNet": FslEmnistNet(),
}
WARM, LEAST = 3, 5  # rounds that do not count, and that count at least
PACK = 64  # runs of each pack of several at once
Point = dict[str, Any]


def workload(
    smoke: bool, clients: int = 1000, m: int = 10, model: str = "logistic"
) -> Run:
    """m clients a round of 60 samples each, one epoch in batches of 20; no evaluation."""
    return Run(
        data=Federation(
            dataset=Digits() if smoke else Mnist(),
            clients=clients,
            partition=Overlapping(samples=60),
        ),
        model=MODELS[model],
        algorithm=FedAvg(),
        participation=Uniform(m=m),
        local=LocalTraining(lr=0.1, batch_size=20, epochs=1),
        rounds=10**9,
        eval_every=10**9,
    )


def resident() -> float:
    """Memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def rounds(step: Callable[[], object], seconds: float) -> float:
    """Median seconds of a round."""
    took: list[float] = []
    for _ in range(WARM):
        step()
    while len(took) < LEAST or sum(took) < seconds:
        began = time.perf_counter()
        step()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def in_process(run: Run, seconds: float) -> Point:
    """raysafl in this process, without Ray, files or logging."""
    from raysafl.runtime.in_process import Worker
    from raysafl.simulation.simulation import Simulation

    data, before = run.data.load(), resident()
    began = time.perf_counter()
    work = Worker(run.cells, data, run.model, batch_size=run.local.batch_size)
    simulation = Simulation(run, work)
    ready = time.perf_counter() - began
    return {
        "seconds": rounds(simulation.step, seconds),
        "ready": ready,
        "memory": resident(),
        "grown": resident() - before,
        "parameters": work.trainer.model.num_parameters,
        "engine": work.trainer.engine_name,
    }


@contextmanager
def hosted(
    runs: Sequence[Run], hardware: Any, data: Any = None
) -> Iterator[tuple[Any, str]]:
    """The runs' work on client actors of the running Ray, and their engine."""
    import ray

    from raysafl.runtime.messages import PackSetup
    from raysafl.runtime.on_actors import host_pack, start_actors

    first = runs[0]
    actors = start_actors(hardware)
    ref = data or ray.put(first.data.load())
    cells = [cell for run in runs for cell in run.cells]
    setup = PackSetup(cells, ref, first.model, "auto", first.local.batch_size)
    work, _, engine = host_pack(actors, setup)
    try:
        yield work, engine
    finally:
        actors.kill()


def on_actors(run: Run, actors: int, seconds: float) -> Point:
    """raysafl on client actors of one core, without trials or files."""
    from raysafl.runtime.hardware import Hardware
    from raysafl.runtime.ray_session import ray_session
    from raysafl.simulation.simulation import Simulation

    with ray_session(None), hosted([run], Hardware(actors=actors)) as (work, engine):
        took = rounds(Simulation(run, work).step, seconds)
    return {"seconds": took, "memory": resident(), "engine": engine}


def copies(run: Run, count: int) -> list[Run]:
    """So many runs that differ in their seeds."""
    return [run.replace(seed=seed) for seed in range(count)]


def lockstep(runs: Sequence[Run], work: Any) -> Callable[[], object]:
    """One round of all runs (of one replicate each), which advance in lock-step."""
    from raysafl.simulation.lockstep import Lockstep
    from raysafl.simulation.simulation import Simulation

    pack = {i: Simulation(run, work, i) for i, run in enumerate(runs)}
    driver = Lockstep[int](work)

    def step() -> None:
        for outcome in driver.advance(pack).values():
            if isinstance(outcome, BaseException):
                raise outcome

    return step


def pack_of(run: Run, size: int, seconds: float) -> Point:
    """A pack of runs on one client actor, in processes that hold nothing else."""
    from raysafl.bench.watch import client_actors
    from raysafl.runtime.hardware import Hardware
    from raysafl.runtime.ray_session import ray_session

    runs = copies(run, size)
    with ray_session(None), hosted(runs, Hardware()) as (work, engine):
        before = resident()
        took = rounds(lockstep(runs, work), seconds)
        actor = sum(process.memory_info().rss for process in client_actors())
        header = header_bytes(runs, work)
    return {
        "seconds": took,
        "memory": resident(),
        "grown": resident() - before,
        "actor": actor / 2**20,
        "header": header / size,
        "parameters": work.model.num_parameters,
        "engine": engine,
    }


def header_bytes(runs: Sequence[Run], work: Any) -> int:
    """The bytes of a round's message to the only actor, without parameters."""
    from raysafl.core.work import Training
    from raysafl.runtime.exact_mean import count_averaged
    from raysafl.runtime.messages import TaskMessage
    from raysafl.simulation.simulation import Simulation

    asked = [next(Simulation(run, work, i).next_round()) for i, run in enumerate(runs)]
    whole = Training.merged([one for one in asked if isinstance(one, Training)])
    counts = count_averaged(whole.tasks, whole.averaged)
    return len(TaskMessage(whole.tasks, counts).encode({})[0])


class Coordinator:
    """A pack in a process of its own, as a trial has it, with one client actor."""

    def __init__(self, runs: Sequence[Run], data: Any) -> None:
        import torch

        from raysafl.runtime.hardware import Hardware

        torch.set_num_threads(1)
        self.hosted = hosted(runs, Hardware(cpus=0.2), data[0])
        work, _ = self.hosted.__enter__()
        self.step = lockstep(runs, work)

    def rounds(self, seconds: float) -> float:
        return rounds(self.step, seconds)

    def end(self) -> None:
        self.hosted.__exit__(None, None, None)


def packs_at_once(run: Run, packs: int, size: int, seconds: float) -> Point:
    """Packs that have nothing in common but the machine."""
    import ray
    import ray.cloudpickle

    from raysafl.runtime.ray_session import ray_session

    runs = copies(run, packs * size)
    with ray_session(None):
        # A list, as Ray would replace a reference that is an argument by its object.
        data = [ray.put(run.data.load())]
        # This file is no module that workers could import.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        start = ray.remote(Coordinator).options(num_cpus=0).remote
        hosts = [start(runs[k * size : (k + 1) * size], data) for k in range(packs)]
        # All are ready before one begins.
        ray.get([host.__ray_ready__.remote() for host in hosts])
        took = ray.get([host.rounds.remote(seconds) for host in hosts])
        ray.get([host.end.remote() for host in hosts])
        for host in hosts:
            ray.kill(host)
    return {"seconds": max(took), "each": took, "memory": resident(), "size": size}


def sweep(trials: int) -> Point:
    """A sweep as `raysafl run` does it, Ray's start and MLflow included, of trivial runs."""
    from raysafl.report.figures.curves import curve_of_run
    from raysafl.tracking.sync import sync

    base = workload(smoke=True).replace(
        local=LocalTraining(lr=0.1, batch_size=20, steps=1),
        participation=Uniform(m=1),
        rounds=1,
    )
    with tempfile.TemporaryDirectory() as folder:
        point, store = whole_sweep(copies(base, trials), Path(folder))
        rows = store.rounds()
        began = time.perf_counter()
        fresh = f"sqlite:///{folder}/fresh.db"
        sync(store.path.parent, fresh, lambda message: None, curve_of_run)
        point["sync"] = time.perf_counter() - began
        point["database"] = Path(folder, "fresh.db").stat().st_size
    point["row"] = float(rows.memory_usage(deep=True).sum() / len(rows))
    return point


def reports(count: int) -> Point:
    """A sweep of one run that reports so many rounds to Tune, as every scheduler has it."""
    from ray.tune.schedulers import FIFOScheduler

    run = workload(smoke=True, m=1).replace(rounds=count, eval_every=1)
    with tempfile.TemporaryDirectory() as folder:
        more = {"scheduler": FIFOScheduler(), "metric": "test_accuracy", "mode": "max"}
        point, _ = whole_sweep([run], Path(folder), "none", **more)
    return point


def whole_sweep(
    runs: Sequence[Run], folder: Path, track: str = "auto", **more: Any
) -> tuple[Point, Any]:
    """A sweep: its wall time, the driver's processor time and memory, files, bytes; its store."""
    from raysafl import Runner, Sweep

    out = folder / "results" / "trivial"
    began, used = time.perf_counter(), time.process_time()
    runner = Runner(Sweep("trivial", runs=runs, **more), out, quiet=True, track=track)
    outcome = runner.run()
    took, used = time.perf_counter() - began, time.process_time() - used
    if not outcome.ok:
        raise RuntimeError(
            f"{outcome.missing} runs are missing, {len(outcome.bad)} are bad"
        )
    sizes = [file.stat().st_size for file in out.rglob("*") if file.is_file()]
    point = {"seconds": took, "memory": resident(), "processor": used}
    return point | {"files": len(sizes), "bytes": sum(sizes)}, outcome.store


@dataclass(frozen=True)
class Axis:
    """What is varied: its points, the smoke test's, and how one is measured."""

    told: str  # what it is measured on
    points: Sequence[Any]
    small: Sequence[Any]
    measure: Callable[[Any, bool, float], Point] = field(repr=False)


def by_actors(point: str, smoke: bool, seconds: float) -> Point:
    """`point` is "model, actors": 0 actors is this process."""
    model, _, actors = point.rpartition(", ")
    run = workload(smoke, m=10 if smoke else 100, model=model)
    return (
        on_actors(run, int(actors), seconds)
        if int(actors)
        else in_process(run, seconds)
    )


AXES = {
    "clients": Axis(
        "Clients a round, of 10,000; logistic regression",
        (10, 32, 100, 316, 1000),
        (2, 4),
        lambda m, smoke, s: in_process(workload(smoke, clients=10_000, m=m), s),
    ),
    "population": Axis(
        "Clients there are, of which 10 come each round; logistic regression",
        (100, 1000, 10_000, 100_000, 1_000_000),
        (100, 1_000_000),
        lambda n, smoke, s: in_process(workload(smoke, clients=n), s),
    ),
    "model": Axis(
        "Models of growing size, 10 clients a round",
        tuple(MODELS),
        ("logistic", "MLP 32"),
        lambda name, smoke, s: in_process(workload(smoke, model=name), s),
    ),
    "replicates": Axis(
        "Replicates in lock-step, each 10 clients a round; logistic regression",
        (1, 2, 4, 8, 16, 32),
        (1, 3),
        lambda r, smoke, s: in_process(workload(smoke).replace(replicates=r), s),
    ),
    "trials": Axis(
        "Runs in a sweep (one round of one client and one step on digits), MLflow included",
        (1, 10, 100, 1000),
        (1, 2),
        lambda n, smoke, s: sweep(n),
    ),
    "actors": Axis(
        "Client actors of one core, 100 clients a round; 0 is one process without Ray",
        tuple(f"{model}, {n}" for model in ("logistic", "MLP 128") for n in (0, 1, 2)),
        ("logistic, 0", "logistic, 1"),
        by_actors,
    ),
    "packs": Axis(
        "Runs of a pack in lock-step on one client actor, each 10 clients a round; "
        "logistic regression",
        (1, 8, 64, 512),
        (1, 3),
        lambda n, smoke, s: pack_of(workload(smoke), n, s),
    ),
    "at-once": Axis(
        f"Packs of {PACK} runs at the same time, each with a coordinator and one client actor",
        (1, 2, 3, 4),
        (1, 2),
        lambda n, smoke, s: packs_at_once(workload(smoke), n, 3 if smoke else PACK, s),
    ),
    "reports": Axis(
        "Reports of a trial to the driver, of rounds of one client on digits, without MLflow",
        (1, 100, 1000),
        (1, 3),
        lambda n, smoke, s: reports(n),
    ),
}


def isolated(axis: str, at: int, smoke: bool, seconds: float) -> Point:
    """A point measured in a fresh process."""
    with tempfile.TemporaryDirectory(
        prefix="scale-"
    ) as folder:  # Ray's, short for its sockets
        one = dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
        )
        env = os.environ | one | {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
        command = [sys.executable, str(HERE / "scaling.py"), "--point", axis, str(at)]
        command += ["--seconds", str(seconds), *(["--smoke"] if smoke else [])]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    point: Point = json.loads(done.stdout.splitlines()[-1])
    return point


def machine() -> dict[str, Any]:
    """Where and with what this was measured, the load of the machine at the start included."""
    import torch

    from raysafl.runtime.provenance import commit, provenance

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    cpus = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        **{name: value for name, value in provenance().items() if name != "host"},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "cpu": f"{os.cpu_count()} x {(cpus or [platform.machine()])[0]}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "load": round(os.getloadavg()[0], 1),
    }


def take(axis: str, smoke: bool, seconds: float, repeats: int) -> dict[str, Any]:
    """All points of an axis, `repeats` times in turns."""
    points = AXES[axis].small if smoke else AXES[axis].points
    where = machine()
    taken: list[list[Point]] = [[] for _ in points]
    for _ in range(repeats):
        for at, point in enumerate(points):
            taken[at].append(isolated(axis, at, smoke, seconds))
            print(f"{axis} {point}: {taken[at][-1]['seconds']:.4g} s", flush=True)
    return {"machine": where, "points": list(points), "taken": taken}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    plain = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument(
        "--only", nargs="+", choices=AXES, default=list(AXES), metavar="AXIS"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="processes for each point"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of rounds in each")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--redraw", action="store_true", help="measure nothing")
    parser.add_argument(
        "--point", nargs=2, metavar=("AXIS", "NUMBER"), help=argparse.SUPPRESS
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.point:
        import torch

        torch.set_num_threads(1)
        axis, at = AXES[options.point[0]], int(options.point[1])
        point = (axis.small if options.smoke else axis.points)[at]
        print(json.dumps(axis.measure(point, options.smoke, options.seconds)))
        return
    from scaling_report import figure, table

    file = options.out / "scaling.json"
    measured: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    options.out.mkdir(parents=True, exist_ok=True)
    for axis in [] if options.redraw else options.only:
        measured[axis] = take(axis, options.smoke, options.seconds, options.repeats)
        file.write_text(json.dumps(measured, indent=1))  # a later axis may fail
    measured = {axis: measured[axis] for axis in AXES if axis in measured}
    (options.out / "scaling.md").write_text(
        table(measured, {a: AXES[a].told for a in AXES})
    )
    (options.out / "scaling.png").write_bytes(figure(measured))


if __name__ == "__main__":
    main()
