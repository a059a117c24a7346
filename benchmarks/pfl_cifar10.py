"""pfl-research's CIFAR-10 benchmark: raysafl and other frameworks on the same device in turn.

    python -m benchmarks.pfl_cifar10 [--pfl PYTHON] [--flower PYTHON] [--rounds 1500]
                                     [--repeats 1] [--out FILE] [--dry]

It needs a GPU, and CIFAR-10 in the folder of the data. Each other framework has an
environment of its own (README.md, "Other frameworks"), and is left out if its Python is
not given. `--dry` says what would be measured, and tries it on this CPU at a tiny size, on
the embedded digits.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import raysafl as fl
from benchmarks.device import device_of, name_of
from benchmarks.found import Found, Piece, origin
from benchmarks.processes import progress, turns
from benchmarks.rivals import SCRIPTS, ours, rival, summary, versions, write_task
from benchmarks.shared_data import shared
from benchmarks.tables import headline, in_seconds, table
from benchmarks.workloads import MALLOC, PflCifarNet, Workload

BASELINE = "apple/pfl-research, benchmarks/image_classification/configs/baseline.yaml"
NETWORK = "apple/pfl-research, publications/pfl/compare_utils/pytorch.py"
FLOWER = "apple/pfl-research, publications/pfl/flower/cifar10/conf/cifar10/config.yaml"
OWN = "our choice, the same for all"
# What is measured, and where it is said.
FACTS = (
    ("users of 50 samples each, IID", "1,000", BASELINE),
    ("users a round, drawn uniformly, unweighted", "50", BASELINE),
    ("rounds", "1,500", BASELINE),
    ("local training", "1 epoch of SGD, batch 10, rate 0.1", BASELINE),
    ("server's rate", "1.0", BASELINE),
    ("evaluated on all 10,000 test images", "every 10 rounds", BASELINE),
    (
        "network",
        "conv 3x3 32, conv 3x3 64 (no padding), pool 2x2, dropout 0.25, 12544-128, dropout "
        "0.5, 128-10; weights uniform by Glorot",
        NETWORK,
    ),
    ("processes of Flower on one GPU", "10 of 1 core and 0.1 GPU each", FLOWER),
    ("inputs", "standardised by one mean and one deviation for all channels", OWN),
)
PREDICTED = """Predicted for one H200 on 2026-11-29, before any of it was measured there:
a round is 250 local steps of 1 GFLOP, 0.25 TFLOP in all, of which the floor is 5 ms in float32.
raysafl 60 to 120 ms a round (4 to 8 % of the floor; 2 to 3 min in all), in bfloat16 0.5 to
0.8 of that; pfl-research 130 to 250 ms a round, as a step of a plain loop takes 0.4 to 0.7 ms
there; Flower 0.7 to 3 s a round. Accuracies after 1,500 rounds within 1.5 points of each other,
between 68 and 73 %, in bfloat16 as well."""


def benchmark_run(rounds: int = 1500) -> fl.Run:
    """Return the benchmark as a run of raysafl."""
    return fl.Run(
        data=fl.Federation(
            dataset=fl.data.ParquetImages(path="cifar10", standardise=True),
            clients=1000,
        ),
        model=PflCifarNet(),
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=50),
        local=fl.LocalTraining(lr=0.1, batch_size=10, epochs=1),
        rounds=rounds,
        eval_every=10,
    )


def tiny_run() -> fl.Run:
    """Return what --dry runs: three clients of the embedded digits, three rounds."""
    return benchmark_run(rounds=3).replace(
        {
            "data": fl.Federation(dataset=fl.data.Digits(), clients=3),
            "participation.m": 2,
            "eval_every": 1,
        }
    )


def contestants(run: fl.Run) -> dict[str, fl.Run]:
    """Return what raysafl runs, by name."""
    coarse = run.replace({"model.precision": "bfloat16"})
    return {"raysafl": run, "raysafl in bfloat16": coarse}


def measures(
    run: fl.Run, device: str, pythons: Mapping[str, str], repeats: int
) -> Iterator[Piece]:
    """Measure all contestants, which take turns; yield the medians after each turn.

    Args:
        run: the benchmark.
        device: "cuda", or "cpu" when the command is only tried.
        pythons: the interpreters of the frameworks' environments, by framework.
        repeats: the number of turns.
    """
    work = Workload(run, target=1.0, env=MALLOC)
    with shared(), tempfile.TemporaryDirectory() as folder:
        # Flower's simulation has ten processes on one GPU.
        hosted: dict[str, Any] = {"device": device, "network": "pfl"}
        if device == "cuda":
            hosted |= {"cpus": 10, "gpus_of_a_client": 0.1}
        spec, samples = write_task("pfl", work, Path(folder), hosted)
        actions = {
            name: partial(
                ours, Workload(own, 1.0, MALLOC), {"what": "ours", "device": device}
            )
            for name, own in contestants(run).items()
        }
        actions |= {
            name: partial(rival, work, python, SCRIPTS[name], spec)
            for name, python in pythons.items()
        }
        taken = []
        for turn in turns(actions, repeats):
            taken.append(turn)
            yield {
                name: summary(work, samples, [one[name] for one in taken])
                for name in actions
            }


def report(found: Found) -> str:
    """Write what was found: a row a contestant."""
    first = found.measures["raysafl"]["seconds_per_round"]
    body = [
        (
            name,
            in_seconds(one["seconds_per_round"]),
            f"{one['seconds_per_round'] / first:.2f}",
            f"{one['samples_per_s']:,.0f}",
            f"{one['wall_seconds']:.1f} s",
            f"{one['accuracy']:.4f}",
        )
        for name, one in found.measures.items()
    ]
    head = ("", "a round", "over raysafl", "samples/s", "in all", "accuracy")
    return f"{headline(found.origin)}.\n\n{table(head, body)}"


def plan(run: fl.Run, pythons: Mapping[str, str]) -> str:
    """Say what would be measured, what was predicted, and what is left out."""
    lines = [f"{what}: {value} ({source})" for what, value, source in FACTS]
    left_out = [name for name in ("pfl", "flower") if name not in pythons]
    lines += [f"{name}: not run, as its Python is not given" for name in left_out]
    try:
        data = run.data.load()
        lines.append(f"data: {data.name}, {len(data.train):,} + {len(data.test):,}")
    except ValueError as error:
        lines.append(f"data: missing ({error})")
    return "\n".join([*lines, PREDICTED])


def main() -> int:
    """Measure what the command asks for, and print a table; 2 for a mistake."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.pfl_cifar10",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in ("pfl", "flower"):
        parser.add_argument(
            f"--{name}", metavar="PYTHON", help="that has the framework"
        )
    parser.add_argument("--rounds", type=int, default=1500, help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=1, help="turns [%(default)s]")
    parser.add_argument("--out", type=Path, help="the JSON file")
    parser.add_argument("--dry", action="store_true", help="only try it, on a CPU")
    given = parser.parse_args()
    paths = {name: getattr(given, name) for name in ("pfl", "flower")}
    pythons = {name: path for name, path in paths.items() if path}
    try:
        device = device_of(given.dry)
        run = benchmark_run(given.rounds)
        print(plan(run, pythons), flush=True)
        measured = tiny_run() if given.dry else run
        settings: dict[str, Any] = {"device": name_of(device), "dry": given.dry}
        found = Found(origin(**settings, rivals=versions(pythons)))
        default = Path("pfl-cifar10-dry.json" if given.dry else "pfl-cifar10.json")
        found.collect(
            measures(measured, device, pythons, given.repeats), given.out or default
        )
        print(report(found))
    except ValueError as error:
        progress(f"Error: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
