"""`python -m benchmarks rivals`: raysafl, the plain loop and other frameworks take turns.

Each framework has an environment of its own (see README.md) and one script in
`frameworks/`. Data and split are raysafl's own, the same for all.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.found import Piece
from benchmarks.job import Job
from benchmarks.processes import (
    THREADS,
    Result,
    median,
    peak_memory,
    seconds_per_round,
    together,
    turns,
)
from benchmarks.workloads import TINY, Workload, samples_per_round
from raysafl.participation import Uniform

SCRIPTS = {"pfl": "pfl_research.py", "flower": "flower.py", "fedjax": "fedjax_jit.py"}
PACKAGES = {
    "pfl": ["pfl", "torch"],
    "flower": ["flwr", "ray", "torch"],
    "fedjax": ["fedjax", "jax"],
}
ONE_THREAD = {
    **THREADS,
    "NPROC": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
VERSIONS = (
    "import importlib.metadata as m, sys; "
    "print(*(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
)
# All clients of a rival have equally many samples.
EVEN = TINY.replace({"data.clients": 3, "participation.m": 2})
DRY = {"W1": Workload(EVEN, target=1.0)}
OURS: Mapping[str, dict[str, Any]] = {
    "plain loop": {"what": "plain"},
    "raysafl, one process": {"what": "ours"},
    "raysafl, two client actors": {"what": "actors", "actors": 2},
}


def versions(pythons: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of each framework's packages.

    Args:
        pythons: the interpreters of the frameworks' environments, by framework.
    """
    return {
        name: subprocess.run(
            [python, "-c", VERSIONS, *PACKAGES[name]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name, python in pythons.items()
    }


def measures(
    workloads: Mapping[str, Workload], pythons: Mapping[str, str], repeats: int
) -> Iterator[Piece]:
    """Measure all contestants on each workload; they take turns.

    Args:
        workloads: the workloads by name.
        pythons: the interpreters of the frameworks' environments; a framework without
            one is left out.
        repeats: the number of turns.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, work in workloads.items():
            spec, samples = write_task(name, work, Path(folder))
            actions = {key: partial(ours, work, how) for key, how in OURS.items()}
            actions |= {
                key: partial(rival, work, python, SCRIPTS[key], spec)
                for key, python in pythons.items()
            }
            taken = list(turns(actions, repeats))
            yield {
                name: {
                    key: summary(work, samples, [turn[key] for turn in taken])
                    for key in actions
                }
            }


def write_task(
    name: str, work: Workload, folder: Path, more: Mapping[str, Any] | None = None
) -> tuple[Path, float]:
    """Write a workload's numbers as JSON, and its data and split beside it.

    Args:
        name: the workload's name.
        work: the workload.
        folder: where the files are written.
        more: further numbers, such as the device; see `frameworks/task.py`.

    Returns:
        The file, and the number of training samples of a round.
    """
    run = work.run
    assert isinstance(run.participation, Uniform)
    dataset = run.data.load()
    train = dataset.train
    data = folder / f"{name}.npz"
    np.savez(
        data,
        x=train.x,
        y=train.y,
        clients=np.stack(run.data.split(dataset, run.seed).clients),
        test_x=dataset.test.x,
        test_y=dataset.test.y,
    )
    spec = {
        "name": name,
        "data": str(data),
        "scale": train.scale,
        "shift": train.shift,
        "inputs": int(np.prod(train.x.shape[1:])),
        "m": run.participation.m,
        "lr": run.local.lr,
        "batch": run.local.batch_size,
        "rounds": run.rounds,
        "eval_every": run.eval_every,
        "channels": getattr(run.model, "channels", []),
        "hidden": getattr(run.model, "hidden", 0),
        "shape": list(train.x.shape[1:]),
        **(more or {}),
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(spec))
    return path, samples_per_round(run, len(train))


def ours(work: Workload, how: Mapping[str, Any]) -> Result:
    """Measure raysafl or the plain loop."""
    began = time.perf_counter()
    (done,) = together([Job(runs=[work.run], env=dict(work.env), **how)])
    wall = time.perf_counter() - began
    return Result(done.seconds, done.accuracy, done.peak_rss_mb, {"wall": wall})


def rival(work: Workload, python: str, script: str, spec: Path) -> Result:
    """Measure another framework, from the last line that its script prints.

    Raises:
        ValueError: the script failed.
    """
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python, Path(__file__).parent / "frameworks" / script, spec],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **ONE_THREAD, **work.env},
            cwd=spec.parent,
        )
        with peak_memory(process.pid) as peak:
            said, _ = process.communicate()
        wall = time.perf_counter() - began
        lines = [line for line in said.splitlines() if line.startswith('{"seconds"')]
        if process.returncode or not lines:
            errors.seek(0)
            raise ValueError(
                f"{script} failed on {spec.stem}:\n{errors.read()[-3000:]}"
            )
    told = json.loads(lines[-1])
    return Result(told["seconds"], told["accuracy"], peak[0], {"wall": wall})


def summary(work: Workload, samples: float, done: Sequence[Result]) -> dict[str, Any]:
    """Return the medians of one contestant over the turns."""
    means = seconds_per_round(work.run, [[result] for result in done])
    return {
        "seconds_per_round": median(means),
        "repeats": means,
        "samples_per_s": samples / median(means),
        "accuracy": median([result.accuracy or 0.0 for result in done]),
        "peak_rss_mb": median([result.peak_rss_mb for result in done]),
        "wall_seconds": median([result.more["wall"] for result in done]),
    }
