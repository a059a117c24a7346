"""FedAWE's table on CIFAR-10: raysafl and its authors' program on the same device in turn.

    python -m benchmarks.fedawe --fedawe FOLDER [--python PYTHON] [--rounds 6]
                                [--repeats 1] [--out FILE] [--dry]

FOLDER is a clone of github.com/mingxiang12/FedAWE (e0b8538), and PYTHON has torch and
torchvision, by default this one. It needs a GPU, and CIFAR-10 in the folder of the data.
Measured are rounds of the program's seven methods of `experiments/fedawe/table2_cifar10.py` under
the sine with gamma = 0.3, each alone by the program, and by raysafl in one pack of three
seeds each. Both have the same inputs, network, local steps and laws of partition and
availability; what else differs is said there. No evaluation is timed. `--dry` says
what is predicted, and tries two methods on this CPU, with ten clients of the embedded digits.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import raysafl as fl
from benchmarks.device import device_of, name_of, wait_for
from benchmarks.found import ROOT, Found, Piece, origin
from benchmarks.processes import Result, median, progress, seconds_per_round, turns
from benchmarks.rivals import rival
from benchmarks.rounds import Pack, time_rounds
from benchmarks.tables import headline, in_seconds, table
from benchmarks.workloads import MALLOC, Workload
from raysafl.sweep.experiment_file import load_sweep
from raysafl.sweep.simulate import worker_of

FILE = ROOT / "experiments" / "fedawe" / "table2_cifar10.py"
# The program's names of the methods.
METHODS = {
    "FedAWE": "fedawe",
    "FedAvg": "fedavg",
    "FedAvg over all": "fedall",
    "FedAU": "fedau",
    "FedAvg known": "fedknown",
    "MIFA": "mifa",
    "FedVARP": "fedvarp",
}
PROGRAM = "the authors' program, "
# These methods have so many runs in the table, each of so many rounds by the program's default.
RUNS, ROUNDS = 126, 200
PREDICTED = """Predicted for one H200 on 2026-11-29, before any of it was measured there:
a round of one run is some 25 clients of 10 steps of 128 samples, 0.7 TFLOP. The authors'
program takes 0.8 to 2 s, most of it in its data loaders, and raysafl 0.15 to 0.4 s in a
pack; so all 126 runs of 200 rounds take 5 to 14 hours there, and 1 to 3 here."""


def table_runs(rounds: int) -> dict[str, fl.Run]:
    """Return the runs of the table under one availability, by method, without evaluation."""
    labelled = load_sweep(FILE).at("short").labelled()
    changes = {"rounds": rounds, "eval_every": rounds}
    return {method: labelled[method, "sine"].replace(changes) for method in METHODS}


def tiny_runs() -> dict[str, fl.Run]:
    """Return what --dry runs: two methods on embedded digits as large as CIFAR-10's images.

    They are one for each of the program's two loops.
    """
    digits = fl.Digits().load()
    parts = [
        (np.kron(part.x, np.ones((3, 4, 4), part.x.dtype)), part.y)
        for part in (digits.train, digits.test)
    ]
    data = fl.from_arrays(*parts[0], test=parts[1], scale=1 / 16, name="large digits")
    changes: dict[str, Any] = {
        "data.dataset": data,
        "data.clients": 10,
        "local.batch_size": 8,
        "replicates": 1,
    }
    runs = table_runs(3)
    return {name: runs[name].replace(changes) for name in ("FedAWE", "FedAvg")}


def ours(runs: Sequence[fl.Run], device: str) -> Result:
    """Measure raysafl in this process, with one thread, and all runs as one pack."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    work = worker_of(runs, runs[0].data.load(), device=device)
    wait = partial(wait_for, device)
    done = time_rounds(Pack(runs, work).step, runs[0].rounds, wait=wait)
    wall = time.perf_counter() - began
    return Result(done["seconds"], done["accuracy"], 0.0, {"wall": wall})


def write_spec(
    method: str, run: fl.Run, clone: Path, device: str, folder: Path
) -> Path:
    """Write what `frameworks/fedawe.py` is told, beside the data that all methods share."""
    data = folder / "images.npz"
    dataset = run.data.load()
    train, test = dataset.train, dataset.test
    if not data.exists():
        # The program deals the samples itself.
        nobody = np.empty(0)
        np.savez(
            data, x=train.x, y=train.y, test_x=test.x, test_y=test.y, clients=nobody
        )
    spec = {
        "method": METHODS[method],
        "folder": str(clone.resolve()),
        "data": str(data),
        "scale": train.scale,
        "shift": train.shift,
        "device": device,
        "clients": run.data.clients,
        "lr": run.local.lr,
        "batch": run.local.batch_size,
        "rounds": run.rounds,
        "eval_every": run.eval_every,
    }
    path = folder / f"{METHODS[method]}.json"
    path.write_text(json.dumps(spec))
    return path


def measures(
    runs: Mapping[str, fl.Run], clone: Path, python: str, device: str, repeats: int
) -> Iterator[Piece]:
    """Measure raysafl and the program's methods in turn; yield medians after each turn.

    Args:
        runs: the runs by method.
        clone: the folder of the authors' program.
        python: the interpreter that runs it.
        device: "cuda", or "cpu" when the command is only tried.
        repeats: the number of turns.
    """
    first = next(iter(runs.values()))
    cells = sum(run.replicates for run in runs.values())
    work = Workload(first, target=1.0, env=MALLOC)
    with tempfile.TemporaryDirectory() as folder:
        actions = {"raysafl": partial(ours, list(runs.values()), device)}
        for method, run in runs.items():
            spec = write_spec(method, run, clone, device, Path(folder))
            name = f"{PROGRAM}{METHODS[method]}"
            actions[name] = partial(rival, work, python, "fedawe.py", spec)
        taken = []
        for turn in turns(actions, repeats):
            taken.append(turn)
            yield {
                name: summary(
                    first,
                    [one[name] for one in taken],
                    cells if name == "raysafl" else 1,
                )
                for name in actions
            }


def summary(run: fl.Run, done: Sequence[Result], cells: int) -> dict[str, Any]:
    """Return the medians of one contestant over the turns, for one of its runs."""
    seconds = [one / cells for one in seconds_per_round(run, [[r] for r in done])]
    return {
        "runs_at_once": cells,
        "seconds_per_round": median(seconds),
        "repeats": seconds,
        "accuracy": median([result.accuracy or 0.0 for result in done]),
        "wall_seconds": median([result.more["wall"] for result in done]),
    }


def report(found: Found) -> str:
    """Write what was found: a row a contestant."""
    first = found.measures["raysafl"]["seconds_per_round"]
    body = [
        (
            name,
            str(one["runs_at_once"]),
            in_seconds(one["seconds_per_round"]),
            f"{one['seconds_per_round'] / first:.2f}",
            f"{one['seconds_per_round'] * RUNS * ROUNDS / 3600:.2f} h",
            f"{one['accuracy']:.4f}",
        )
        for name, one in found.measures.items()
    ]
    whole = f"{RUNS} runs of {ROUNDS} rounds"
    head = ("", "runs at once", "a round of a run", "over raysafl", whole, "accuracy")
    return f"{headline(found.origin)}.\n\n{table(head, body)}"


def main() -> int:
    """Measure what the command asks for, and print a table; 2 for a mistake."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.fedawe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fedawe", type=Path, required=True, help="a clone")
    parser.add_argument("--python", default=sys.executable, help="[this one]")
    parser.add_argument("--rounds", type=int, default=6, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=1, help="turns [%(default)s]")
    parser.add_argument("--out", type=Path, help="the JSON file")
    parser.add_argument("--dry", action="store_true", help="only try it, on a CPU")
    given = parser.parse_args()
    try:
        if not (given.fedawe / "varying_awe.py").is_file():
            raise ValueError(
                f"--fedawe {given.fedawe} is no clone of github.com/mingxiang12/FedAWE: it "
                "has no varying_awe.py; give the folder that holds that file"
            )
        device = device_of(given.dry)
        runs = tiny_runs() if given.dry else table_runs(given.rounds)
        print(PREDICTED, flush=True)
        found = Found(origin(device=name_of(device), dry=given.dry))
        default = Path("fedawe-dry.json" if given.dry else "fedawe.json")
        found.collect(
            measures(runs, given.fedawe, given.python, device, given.repeats),
            given.out or default,
        )
        print(report(found))
    except ValueError as error:
        progress(f"Error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
