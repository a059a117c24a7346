"""How much a GPU is asked to do in a round of the benchmark's workloads, at most."""

import numpy as np
import pytest
from helpers.emulated_cuda import Counts, emulated_cuda

from benchmarks.workloads import STANDARD
from raysafl import Run
from raysafl.data import Dataset, Samples
from raysafl.data.sources import Source
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation


class Noise(Source):
    """Images of random bytes, ten classes in turn."""

    shape: tuple[int, int, int]
    train: int
    test: int

    def load(self) -> Dataset:
        """As many training and test images as asked for."""
        rng = np.random.default_rng(0)

        def samples(count: int) -> Samples:
            x = rng.integers(0, 256, (count, *self.shape), dtype=np.uint8)
            return Samples(x, np.arange(count) % 10, scale=1 / 255)

        return Dataset("noise", samples(self.train), samples(self.test), 10)


MNIST = Noise(shape=(1, 28, 28), train=60_000, test=10_000)
# Ten clients, which come in every round. Each has a tenth of the images and of the batch,
# so the same number of steps.
CIFAR10 = Noise(shape=(3, 32, 32), train=500, test=200)
RUNS: dict[str, Run] = {
    **{
        name: STANDARD[name].run.replace({"data.dataset": MNIST})
        for name in ("W1", "W3", "W4")
    },
    "W2": STANDARD["W2"].run.replace(
        {
            "data.dataset": CIFAR10,
            "data.clients": 10,
            "local.batch_size": 5,
            "eval_every": 100,
        }
    ),
}


def second_round(run: Run, engine: str) -> Counts:
    """Count what is done in the second round, in which nothing is set up any more.

    W1 evaluates the model in each round, the others do not in this one.
    """
    with emulated_cuda() as device:
        work = Worker(
            run.cells,
            run.data.load(),
            run.model,
            device="cuda",
            engine=engine,
        )
        simulation = Simulation(run.replace(rounds=3), work)
        simulation.step()
        # A recorded step trains the tasks that are asked for, and no others.
        steps = work.trainer.resident.steps
        assert {len(step.w_TP) for step in steps} == {run.participation.m}
        with device.counting() as counts:
            simulation.step()
    return counts


@pytest.mark.parametrize(
    ("name", "engine", "launches", "nodes", "syncs"),
    [
        ("W1", "linear", 190, 3100, 3),
        ("W2", "graph", 33, 870, 2),
        ("W3", "linear", 26, 100, 2),
        ("W4", "linear", 29, 200, 2),
    ],
)
def test_a_round_launches_and_waits_at_most_so_often(
    name: str, engine: str, launches: int, nodes: int, syncs: int
) -> None:
    counts = second_round(RUNS[name], engine)
    assert counts.launches <= launches, counts
    assert counts.nodes <= nodes, counts
    assert counts.syncs <= syncs, counts
