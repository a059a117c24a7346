"""How raysafl scales, measured: against clients, population, model, replicates, trials, actors.

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
from collections.abc import Callable, Sequence
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


def rounds(simulation: Any, seconds: float) -> float:
    """Median seconds of a round."""
    took: list[float] = []
    for _ in range(WARM):
        simulation.step()
    while len(took) < LEAST or sum(took) < seconds:
        began = time.perf_counter()
        simulation.step()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def in_process(run: Run, seconds: float) -> Point:
    """raysafl in this process, without Ray, files or logging."""
    from raysafl.runtime import Worker
    from raysafl.simulation.simulation import Simulation

    data, before = run.data.load(), resident()
    began = time.perf_counter()
    work = Worker(run.cells, data, run.model, batch_size=run.local.batch_size)
    simulation = Simulation(run, work)
    ready = time.perf_counter() - began
    return {
        "seconds": rounds(simulation, seconds),
        "ready": ready,
        "memory": resident(),
        "grown": resident() - before,
        "parameters": work.trainer.model.num_parameters,
        "engine": work.trainer.engine_name,
    }


def on_actors(run: Run, actors: int, seconds: float) -> Point:
    """raysafl on client actors of one core, without trials or files."""
    import ray

    from raysafl.runtime import Hardware
    from raysafl.runtime.messages import PackSetup
    from raysafl.runtime.on_actors import host_pack, start_actors
    from raysafl.runtime.ray_session import ray_session
    from raysafl.simulation.simulation import Simulation

    data = run.data.load()
    with ray_session(None):
        hosts, ref = start_actors(Hardware(actors=actors)), ray.put(data)
        setup = PackSetup(run.cells, ref, run.model, "auto", run.local.batch_size)
        work, _, engine = host_pack(hosts, setup)
        took = rounds(Simulation(run, work), seconds)
        hosts.kill()
    return {"seconds": took, "memory": resident(), "engine": engine}


def sweep(trials: int) -> Point:
    """A sweep as `raysafl run` does it, Ray's start and MLflow included, of trivial runs."""
    from raysafl import Runner, Sweep

    base = workload(smoke=True).replace(
        local=LocalTraining(lr=0.1, batch_size=20, steps=1), rounds=1
    )
    runs = [
        base.replace(seed=seed, participation=Uniform(m=1)) for seed in range(trials)
    ]
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        outcome = Runner(
            Sweep("trivial", runs=runs), Path(folder) / "trivial", quiet=True
        ).run()
        took = time.perf_counter() - began
    if not outcome.ok:
        raise RuntimeError(
            f"{outcome.missing} runs are missing, {len(outcome.bad)} are bad"
        )
    return {"seconds": took, "memory": resident()}


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
