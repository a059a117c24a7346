"""The sweeps that the tests run on a cluster: `python sweeps.py NAME FOLDER ADDRESS HARDWARE`.

What lands where is told by files: a model is built in every client actor, an algorithm
runs in every coordinator, and both leave their node, their process and their GPUs in
FOLDER/seen.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import ray
from torch import nn

import raysafl as fl
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.core.randomness import Key
from raysafl.quickstart import BASE


def leave(seen: str, who: str, run: int) -> None:
    """Write down where this process is, once."""
    file = Path(seen) / f"{who}-{run}-{os.getpid()}.json"
    if file.exists():
        return
    context = ray.get_runtime_context()
    gpus = ray.get_gpu_ids()
    told = {
        "node": context.get_node_id(),
        "gpus": gpus,
        "who": who,
        "run": run,
        "pid": os.getpid(),
    }
    told["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    file.with_suffix(".part").write_text(json.dumps(told))
    file.with_suffix(".part").rename(file)


class Seen(fl.Logistic):
    """Tells where the client actors are."""

    seen: str
    run: int

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        if ray.is_initialized() and ray.get_gpu_ids():
            leave(self.seen, "clients", self.run)
        return super().build(input_shape, num_classes)


def coordinators(seen: str) -> int:
    """The number of processes that have coordinated a run so far."""
    files = Path(seen).glob("coordinator-*.json")
    return len({file.stem.rpartition("-")[2] for file in files})


class Together(Algorithm):
    """FedAvg that waits for so many coordinators to begin, and so many seconds a round."""

    seen: str
    run: int
    wait: int = 1
    seconds: float = 0.0

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        if ray.is_initialized():
            leave(self.seen, "coordinator", self.run)
            deadline = time.monotonic() + 300
            while coordinators(self.seen) < self.wait:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{self.wait} trials were never there at the same time"
                    )
                time.sleep(0.05)
        time.sleep(self.seconds)
        return (yield from fl.FedAvg().round(state, ids, key))


def sweep(name: str, seen: str) -> fl.Sweep:
    """A sweep by its name.

    `pair`, `pack`: 2 or 4 runs, all at once; `gang`: 2 runs, as they come; `long`: 3 of
    many rounds; `lasting`: 12 runs of one model, so that a trial may have several.
    """
    count, wait, rounds, seconds = {
        "pair": (2, 2, 3, 0.0),
        "pack": (4, 4, 3, 0.0),
        "gang": (2, 1, 3, 0.0),
        "long": (3, 1, 8, 0.4),
        "lasting": (12, 4, 10, 0.2),
    }[name]
    one_model = name == "lasting"
    runs = {
        (i,): BASE.replace(
            model=Seen(seen=seen, run=0 if one_model else i),
            algorithm=Together(seen=seen, run=i, wait=wait, seconds=seconds),
            rounds=rounds,
            replicates=2,
            seed=10 * i,
        )
        for i in range(count)
    }
    return fl.Sweep(name, runs, axes=("i",))


def main(name: str, folder: str, address: str, hardware: str) -> None:
    seen = Path(folder) / "seen"
    seen.mkdir(parents=True)
    outcome = fl.Runner(
        sweep(name, str(seen)),
        out=Path(folder) / "results",
        hardware=fl.Hardware(**json.loads(hardware)),
        address=address,
        track="none",
        flush_seconds=0.5,
        quiet=True,
        try_first=False,
    ).run()
    for reason in outcome.bad["reason"]:
        print(reason)
    sys.exit(0 if outcome.ok else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
