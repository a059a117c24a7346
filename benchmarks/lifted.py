"""How long a round of runs that advance together takes, for each of the runs.

    python -m benchmarks.lifted [--only empty,digits,W4] [--runs 1,64,1000] [--rounds 20]

Run it with OMP_NUM_THREADS=1. With PYTHONPATH it measures whatever checkout that names,
also one of an older version. It prints microseconds a run and round, of processor time, which
other processes of the machine change little: the lower quartile of the rounds, and the
least. "inside" is the time in the compiled loop of logistic regression's local steps,
and all the rest is what a round costs around it. No round is evaluated.
"""

import argparse
import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from benchmarks.rounds import WARM, copies_of
from benchmarks.workloads import EMPTY, W4
from raysafl.algorithms import SAFARI, SCAFFOLD, FedAvg
from raysafl.core.algorithm import Algorithm, LocalTraining
from raysafl.data import IidServer
from raysafl.kernels import linear
from raysafl.participation import Uniform
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Lockstep, Simulation
from raysafl.sweep.simulate import worker_of

DIGITS = EMPTY.replace(
    {
        "data.clients": 130,
        "participation": Uniform(m=5),
        "local": LocalTraining(lr=0.1, batch_size=4, epochs=1),
    }
)
WORKLOADS: Mapping[str, Run] = {"empty": EMPTY, "digits": DIGITS, "W4": W4.run}
ALGORITHMS: tuple[Algorithm, ...] = (FedAvg(), SAFARI(), SCAFFOLD())
# SCAFFOLD keeps a vector of each client that has come: those of W4's 1,000 clients, each for
# 1,000 runs, are 31 GB.
LEFT_OUT = {("W4", "SCAFFOLD")}
NEVER = 10**6


def workload(name: str, algorithm: Algorithm) -> Run:
    """Return the run of a workload with an algorithm, which is never evaluated.

    Args:
        name: a key of `WORKLOADS`.
        algorithm: the algorithm.
    """
    run = WORKLOADS[name]
    changes: dict[str, Any] = {"algorithm": algorithm}
    if algorithm.uses_server_data:
        # The server's samples are taken from the clients', of which there are fewer then.
        changes["data.server"] = IidServer(n0=100)
        changes["data.clients"] = min(run.data.clients, 1337)
    return run.replace({**changes, "rounds": NEVER, "eval_every": NEVER})


class Inside:
    """Counts the processor time in the compiled loop, from where it is made.

    Attributes:
        seconds: the processor time so far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._descend: Callable[..., object] = linear.descend
        linear.descend = self._timed

    def _timed(self, *arguments: Any) -> object:
        began = time.process_time()
        result = self._descend(*arguments)
        self.seconds += time.process_time() - began
        return result


def measured(run: Run, runs: int, rounds: int, inside: Inside) -> dict[str, float]:
    """Return the microseconds a run and round: quartile, least, and those inside.

    Args:
        run: what is timed, in copies that differ in their seeds only.
        runs: the number of copies.
        rounds: the number of rounds that are timed.
        inside: counts the time in the compiled loop.
    """
    chosen = copies_of(run, runs)
    work = worker_of(chosen, run.data.load())
    pack = {i: Simulation(one, work, i) for i, one in enumerate(chosen)}
    lockstep = Lockstep[int](work)
    for _ in range(WARM):
        lockstep.advance(pack)
    gc.collect()
    gc.freeze()
    before = inside.seconds
    took = []
    for _ in range(rounds):
        began = time.process_time()
        lockstep.advance(pack)
        took.append(time.process_time() - began)
    gc.unfreeze()
    scale = 1e6 / runs
    return {
        "quartile": float(np.quantile(took, 0.25)) * scale,
        "least": min(took) * scale,
        "inside": (inside.seconds - before) / rounds * scale,
    }


def main() -> None:
    """Measure what the command asks for, and print a line of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--runs", default="1,64,1000")
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    inside = Inside()
    for name in given.only.split(","):
        for algorithm in ALGORITHMS:
            kind = type(algorithm).__name__
            if (name, kind) in LEFT_OUT:
                continue
            for runs in map(int, given.runs.split(",")):
                run = workload(name, algorithm)
                found = measured(run, runs, given.rounds, inside)
                print(
                    f"{name:7} {kind:9} {runs:5} runs: {found['quartile']:8.1f} us "
                    f"(least {found['least']:.1f}, inside {found['inside']:.1f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
