"""Small runs on several kinds of models, and their comparison between two devices."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import raysafl as fl
from experiments.theorems.gradients import gradients
from helpers.packs import Played, played
from raysafl.data import Dataset, Samples
from raysafl.data.sources import Source
from raysafl.models import CharLSTM
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.training.resident import Resident

CLASSES = 4


class SmallImages(Source):
    """Images [1, 6, 6] of noise around a shade for each class."""

    def load(self) -> Dataset:
        """120 training and 60 test images."""
        rng = np.random.default_rng(0)

        def samples(count: int) -> Samples:
            y = np.arange(count) % CLASSES
            x = y[:, None, None, None] / CLASSES + rng.normal(0, 0.5, (count, 1, 6, 6))
            return Samples(x.astype(np.float32), y)

        return Dataset("small images", samples(120), samples(60), CLASSES)


class SmallTexts(Source):
    """Texts of 5 tokens, of which the last one gives the class."""

    def load(self) -> Dataset:
        """120 training and 60 test texts."""
        rng = np.random.default_rng(0)

        def samples(count: int) -> Samples:
            x = rng.integers(0, CLASSES, (count, 5))
            return Samples(x, x[:, -1].copy())

        return Dataset("small texts", samples(120), samples(60), CLASSES)


class WithDropout(fl.Model):
    """Two dense layers with dropout between them."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the layers."""
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(36, 8),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(8, num_classes),
        )


class Uploading(fl.Model):
    """One layer, times a number that is uploaded in each forward pass: it cannot be recorded."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the layer."""

        class Doubled(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                two = torch.tensor([2.0], device=x.device)
                return super().forward(x.flatten(1)) * two

        return Doubled(math.prod(input_shape), num_classes)


MODELS: dict[str, fl.Model] = {
    "logistic": fl.Logistic(),
    "CNN": fl.CNN(channels=[3], hidden=8),
    "dropout": WithDropout(),
    "LSTM": CharLSTM(embedding=3, hidden=5, layers=1, dropout=0.2),
}
ENGINES = {
    "logistic": ("linear", "loop", "vmap", "graph"),
    "CNN": ("loop", "vmap", "graph"),
    "dropout": ("loop", "vmap", "graph"),
    # vmap does not stack recurrent layers.
    "LSTM": ("loop",),
}


def small_run(model: str, algorithm: fl.Algorithm | None = None) -> fl.Run:
    """Two replicates of 2 rounds, with clients of unequal sizes and a server's data."""
    dataset = SmallTexts() if model == "LSTM" else SmallImages()
    return fl.Run(
        data=fl.Federation(
            dataset=dataset,
            clients=6,
            partition=fl.Dirichlet(alpha=2.0, balanced=False),
            server=fl.IidServer(n0=20),
        ),
        model=MODELS[model],
        algorithm=algorithm or fl.FedAvg(),
        participation=fl.Uniform(m=3),
        local=fl.LocalTraining(lr=0.1, batch_size=8, epochs=1),
        rounds=2,
        replicates=2,
    )


def play(
    run: fl.Run,
    device: str,
    engine: str,
    dataset: Dataset | None = None,
    resident: Resident | None = None,
) -> Played:
    """Carry out a run in this process."""
    work = Worker(
        run.cells,
        dataset or run.data.load(),
        run.model,
        device=device,
        engine=engine,
        resident=resident,
    )
    simulation = Simulation(run, work)
    records: list[Any] = []
    while not simulation.done:
        records += simulation.step()
    return played(records, simulation)


def gradient(run: fl.Run, device: str, engine: str) -> torch.Tensor:
    """Return the gradient [P] of the first cell's first model on 40 samples."""
    work = Worker(run.cells, run.data.load(), run.model, device=device, engine=engine)
    return gradients(work.trainer, work.init(0)[None], [np.arange(40)])[0]


def assert_equal_in_float32(found: Played, expected: Played) -> None:
    """Assert that two devices computed the same, to the rounding of float32.

    Parameters may differ by 1e-4 of their value or by 1e-5, and losses by 1e-4 of
    theirs. An accuracy may differ by one sample of a batch. All else is equal.
    """
    for w_P, expected_P in zip(found[1], expected[1], strict=True):
        torch.testing.assert_close(w_P, expected_P, rtol=1e-4, atol=1e-5)
    for row, expected_row in zip(found[0], expected[0], strict=True):
        assert row.keys() == expected_row.keys()
        for name, value in row.items():
            other = expected_row[name]
            if isinstance(value, float):
                atol = 1 / 60 if "accuracy" in name else 1e-6
                assert math.isclose(value, other, rel_tol=1e-4, abs_tol=atol), name
            else:
                assert value == other, name
