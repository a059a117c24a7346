"""`python -m benchmarks engines`: samples/s of the local engines on convolutional networks.

For W2's network and FSL's for CIFAR-10, m clients at once and batches of B: what
`LocalTrainer.train` reaches with each engine by name, and if asked for also with
`torch.compile` around its gradients. Data are random: arithmetic does not depend on
them. Beside it stands the floor, the larger of two times of a step (see `step_cost`): its
FLOP at the better of the measured rates of a matrix product and a convolution, and its
bytes at the measured rate of a copy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.floors import Sizes, measured_rates, seconds_of, step_cost
from benchmarks.found import Piece
from benchmarks.processes import progress
from benchmarks.workloads import W2
from experiments.fsl.networks import FslCifarNet
from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Dataset, Model, Samples
from raysafl.core.randomness import Key
from raysafl.core.work import Tasks, Training
from raysafl.models import FlatModel
from raysafl.training.inputs import Held
from raysafl.training.trainer import LocalTrainer

MODELS: dict[str, Model] = {"W2": W2.run.model, "FslCifarNet": FslCifarNet()}
SHAPE = (3, 32, 32)
CLASSES = 10
STEPS = 2


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Attributes:
        clients: the numbers of clients that are trained at once.
        batches: the sizes of their batches.
        rows: the rows and columns of the matrices that are multiplied for the rates.
        numbers: the float32 numbers that are copied for the rate.
        repeats: how often a case is timed; the median counts.
        limit: a case that the smaller ones before it predict to take longer than so many
            seconds is timed once.
        compiled: whether `torch.compile` around the gradients is measured as well.
    """

    clients: Sequence[int] = (5, 10, 50, 100)
    batches: Sequence[int] = (20, 50, 128, 500)
    rows: int = 2048
    numbers: int = 2**26
    repeats: int = 3
    limit: float = 20.0
    compiled: bool = False


ON_GPU = Grid(rows=4096, numbers=2**28)
DRY = Grid(clients=(1, 2), batches=(2,), rows=64, numbers=2**10)


def measures(device: str, names: Sequence[str], grid: Grid) -> Iterator[Piece]:
    """Measure the rates of a device, then all cases of each network."""
    found = peaks(device, grid)
    yield found
    for name in names:
        costs = {
            batch: step_cost(MODELS[name], random_samples(batch), batch)
            for batch in grid.batches
        }
        told = {str(b): [cost["flop"], cost["bytes"]] for b, cost in costs.items()}
        rows: list[dict[str, Any]] = []
        for row in cases(MODELS[name], device, grid):
            cost = costs[row["batch"]]
            by_flop = cost["flop"] / found["flop_per_s"]
            by_bytes = cost["bytes"] / found["bytes_per_s"]
            row["floor_samples_per_s"] = row["batch"] / max(by_flop, by_bytes)
            rows.append(row)
            progress(f"{name} {row}")
            yield {"models": {name: {"flop_and_bytes": told, "rows": rows}}}


def peaks(device: str, grid: Grid) -> dict[str, float]:
    """Measure FLOP/s in float32 and in bfloat16, and bytes/s of a copy.

    FLOP/s are the better of a matrix product's and a convolution's: libraries differ in
    both.
    """
    found: dict[str, float] = {}
    for rate in measured_rates(device, Sizes(grid.rows, grid.numbers)):
        found |= rate
    rates = {"bytes_per_s": found["copy_bytes_per_s"]}
    shapes = ((64, 64, 32, 32), (64, 64, 3, 3))
    for name, key in (("float32", ""), ("bfloat16", "bfloat16_")):
        x, w = (
            torch.rand(shape, device=device).to(
                getattr(torch, name), memory_format=torch.channels_last
            )
            for shape in shapes
        )
        took = seconds_of(lambda x=x, w=w: F.conv2d(x, w, padding=1), device)  # type: ignore[misc]
        by_convolution = 2 * x.numel() * 64 * 9 / took
        rates[f"{key}flop_per_s"] = max(found[f"{name}_flop_per_s"], by_convolution)
    return rates


def random_samples(count: int) -> Dataset:
    """Make images of random bytes with random labels."""
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(count, *SHAPE), dtype=np.uint8)
    y = rng.integers(CLASSES, size=count)
    samples = Samples(x, y, 2 / 255, -1.0)
    return Dataset("random", samples, samples, CLASSES)


def samples_per_s(
    recipe: Model, engine: str, compiled: bool, row: dict[str, Any], device: str
) -> float:
    """Return the samples/s of random clients that hold `STEPS` batches each."""
    held = row["batch"] * STEPS
    model = FlatModel(recipe, SHAPE, CLASSES)
    trainer = LocalTrainer(
        model,
        random_samples(held * row["clients"]),
        lambda tasks: Held.of(
            [
                np.arange(client * held, (client + 1) * held)
                for client in tasks.columns["client"].tolist()
            ]
        ),
        device,
        engine,
    )
    if compiled:
        # After eight versions of a function it would not compile it again.
        torch._dynamo.reset()
        trained: Any = trainer.engine
        trained.gradients = torch.compile(trained.gradients)
    local = LocalTraining(lr=0.01, batch_size=row["batch"], epochs=1)
    w_P = model.init(Key(0))
    asked = Training(
        cells_R=np.array([0]),
        seeds_R=np.array([0], np.uint64),
        round=0,
        call=1,
        clients_RM=np.arange(row["clients"])[None],
        w=w_P[None],
        locals=[local],
    )
    tasks = Tasks.of([asked])
    took = seconds_of(lambda: trainer.train(tasks), device, row["repeats"])
    return float(held * row["clients"] / took)


def cases(recipe: Model, device: str, grid: Grid) -> Iterator[dict[str, Any]]:
    """Measure all cases of one network, small ones first; what fails says why."""
    engines = ["loop", "vmap", *(["graph"] if device == "cuda" else [])]
    pairs = sorted(
        product(grid.clients, grid.batches), key=lambda case: case[0] * case[1]
    )
    for compiled in (False, True) if grid.compiled else (False,):
        for engine in engines:
            # Samples/s of the slowest case so far.
            slowest = float("inf")
            for clients, batch in pairs:
                predicted = (grid.repeats + 1) * STEPS * clients * batch / slowest
                row: dict[str, Any] = {
                    "engine": f"compile({engine})" if compiled else engine,
                    "clients": clients,
                    "batch": batch,
                    "repeats": grid.repeats if predicted <= grid.limit else 1,
                }
                try:
                    rate = samples_per_s(recipe, engine, compiled, row, device)
                except Exception as error:
                    # An engine that does not run is a finding.
                    reason = f"{type(error).__name__}: {str(error)[:120]}"
                    yield {**row, "skipped": reason}
                    if compiled:
                        break
                    continue
                slowest = min(rate, slowest)
                yield {**row, "samples_per_s": rate}
