"""Measures how much memory runs of large models take: `python -m helpers.peak_memory JSON`.

Each run is simulated in a process of its own, which is forked when all modules are
imported, so that only what the run itself holds is measured. One line of JSON a run
holds the peak over what was there before, and what `sweep.packs` estimates, in bytes.
"""

import json
import os
import resource
import sys
from pathlib import Path

import torch

import raysafl as fl
from raysafl.quickstart import BASE
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.sweep.packs import needs_of

MODELS = {
    "mlp": fl.MLP(hidden=(2000, 2000)),
    "cnn": fl.CNN(channels=[32, 64], hidden=14_000),
    "small": fl.MLP(hidden=(8,)),
}


def run_of(model: str, algorithm: str, cohort: int) -> fl.Run:
    return BASE.replace(
        model=MODELS[model],
        algorithm=getattr(fl.algorithms, algorithm)(),
        participation=fl.Uniform(m=cohort),
        rounds=3,
        replicates=1,
        local=fl.LocalTraining(lr=0.1, batch_size=32, steps=2),
    )


def carry_out(run: fl.Run, engine: str) -> None:
    worker = Worker(run.cells, run.data.load(), run.model, engine=engine)
    simulation = Simulation(run, worker)
    while not simulation.done:
        simulation.step()


def measure(model: str, algorithm: str, engine: str, cohort: int) -> dict[str, float]:
    """The peak and the estimate of a run, in this process."""
    run = run_of(model, algorithm, cohort)
    datasets = {run.data.source_key: run.data.load()}
    ((need, _),) = needs_of([run], datasets, engine)[0]
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    before = pages * os.sysconf("SC_PAGE_SIZE")
    carry_out(run, engine)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"peak": peak, "estimate": need.memory + need.step}


def main(asked: str) -> None:
    torch.set_num_threads(1)
    for engine in ("loop", "vmap"):
        for algorithm in ("FedAvg", "SCAFFOLD"):
            carry_out(run_of("small", algorithm, 2), engine)
    for one in json.loads(asked):
        sys.stdout.flush()
        if not (child := os.fork()):
            print(json.dumps(measure(*one)), flush=True)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1])
