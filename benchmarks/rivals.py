"""raysafl, the plain loop and other frameworks on the same workloads, taking turns in one run.

    python benchmarks/rivals.py --pfl PYTHON --flower PYTHON --fedjax PYTHON \\
        > benchmarks/rivals.json

Each PYTHON is the interpreter of that framework's own environment (see README.md); a
framework that is not given is left out. Data and split are raysafl's own, the same for
all.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from raysafl.bench.job import Job
from raysafl.bench.measure import THREADS, median, peak_memory, together
from raysafl.bench.suite import origin
from raysafl.bench.workloads import STANDARD, samples_per_round, steady_rounds

SCRIPTS = {"pfl": "pfl_research.py", "flower": "flower.py", "fedjax": "fedjax_jit.py"}
ONE_THREAD = {
    **THREADS,
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
HERE = Path(__file__).parent
VERSIONS = (
    "import importlib.metadata as m, sys; "
    "print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
)
PACKAGES = {
    "pfl": ["pfl", "torch"],
    "flower": ["flwr", "ray", "torch"],
    "fedjax": ["fedjax", "jax"],
}


def write_task(name, folder):
    """The workload's numbers as JSON, its data and split beside it."""
    run = STANDARD[name].run
    dataset = run.data.load()
    split = run.data.split(dataset, run.seed)
    columns = {
        "x": dataset.train.x,
        "y": dataset.train.y,
        "clients": np.stack(split.clients),
    }
    data = folder / f"{name}.npz"
    np.savez(data, **columns, test_x=dataset.test.x, test_y=dataset.test.y)
    spec = {
        "name": name,
        "data": str(data),
        "scale": dataset.train.scale,
        "shift": dataset.train.shift,
        "m": run.participation.m,
        "lr": run.local.lr,
        "batch": run.local.batch_size,
        "rounds": run.rounds,
        "eval_every": run.eval_every,
        "channels": getattr(run.model, "channels", []),
        "hidden": getattr(run.model, "hidden", 0),
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(spec))
    return path, samples_per_round(run, len(dataset.train))


def ours(name, what, **more):
    """raysafl or the plain loop: seconds of each round, accuracy, peak memory, wall seconds."""
    work, began = STANDARD[name], time.perf_counter()
    (done,) = together([Job(what=what, runs=[work.run], env=dict(work.env), **more)])
    return done.seconds, done.accuracy, done.peak_rss_mb, time.perf_counter() - began


def rival(name, python, script, path):
    """The same of another framework, from the last line that its script prints."""
    env = {**os.environ, **ONE_THREAD, **STANDARD[name].env}
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python, HERE / "rivals" / script, path],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=env,
            cwd=path.parent,
        )
        with peak_memory(process.pid) as peaks:
            said, _ = process.communicate()
        wall = time.perf_counter() - began
        lines = [line for line in said.splitlines() if line.startswith('{"seconds"')]
        if process.returncode or not lines:
            errors.seek(0)
            raise SystemExit(f"{script} failed on {name}:\n{errors.read()[-3000:]}")
    answer = json.loads(lines[-1])
    return answer["seconds"], answer["accuracy"], peaks[0], wall


def measure(name, pythons, repeats, folder):
    """All contestants on one workload, taking turns."""
    path, samples = write_task(name, folder)
    contestants = {
        "plain loop": lambda: ours(name, "plain"),
        "raysafl, one process": lambda: ours(name, "ours"),
        "raysafl, two client actors": lambda: ours(name, "actors", actors=2),
    }
    for key, python in pythons.items():
        contestants[key] = lambda k=key, p=python: rival(name, p, SCRIPTS[k], path)
    results = {key: [] for key in contestants}
    for repeat in range(repeats):
        for key, run in contestants.items():
            results[key].append(run())
            seconds = np.mean(results[key][-1][0][steady_rounds(STANDARD[name].run)])
            print(
                f"{name} {key} [{repeat + 1}/{repeats}]: {seconds:.4f} s",
                file=sys.stderr,
            )
    return {key: summary(name, samples, done) for key, done in results.items()}


def summary(name, samples, done):
    """Medians over the repeats."""
    span = steady_rounds(STANDARD[name].run)
    means = [float(np.mean(seconds[span])) for seconds, *_ in done]
    return {
        "seconds_per_round": median(means),
        "repeats": means,
        "samples_per_s": samples / median(means),
        "accuracy": median([accuracy for _, accuracy, _, _ in done]),
        "peak_rss_mb": median([peak for _, _, peak, _ in done]),
        "wall_seconds": median([wall for _, _, _, wall in done]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="W1,W2,W3,W4", help="workloads, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    for name in SCRIPTS:
        parser.add_argument(
            f"--{name}", metavar="PYTHON", help="interpreter of its environment"
        )
    given = vars(parser.parse_args())
    names = given["only"].split(",")
    unknown = [name for name in names if name not in STANDARD]
    if unknown:
        parser.error(
            f"unknown workloads {', '.join(unknown)} (known: {', '.join(STANDARD)})"
        )
    pythons = {name: given[name] for name in SCRIPTS if given[name]}
    versions = {
        name: subprocess.run(
            [python, "-c", VERSIONS, *PACKAGES[name]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name, python in pythons.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        found = {n: measure(n, pythons, given["repeats"], Path(folder)) for n in names}
    out = {**found, "rivals": versions, "repeats": given["repeats"], **origin()}
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
