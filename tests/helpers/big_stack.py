"""Tasks whose activations take some hundred megabytes when they are stacked."""

import numpy as np
import torch

from helpers.tasks import Task, Trainer
from raysafl import CNN, LocalTraining
from raysafl.algorithms import Key, Update
from raysafl.data import Dataset, Samples
from raysafl.models import FlatModel
from raysafl.training.trainer import LocalTrainer

BATCH = 32
SHAPE = (1, 16, 16)
CLASSES = 4


def big_trainer(device: str, engine: str) -> LocalTrainer:
    """A convolutional network, and one client that holds BATCH images."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, *SHAPE)).astype(np.float32)
    samples = Samples(x, np.arange(BATCH) % CLASSES)
    return Trainer(
        FlatModel(CNN(channels=[32], hidden=64), SHAPE, CLASSES),
        Dataset("noise", samples, samples, CLASSES),
        lambda cell, client: np.arange(BATCH),
        device,
        engine,
    )


def big_tasks(count: int) -> list[Task]:
    """Two steps of as many cells, each with a start of its own."""
    local = LocalTraining(lr=0.05, batch_size=BATCH, steps=2)
    model = big_trainer("cpu", "loop").model
    return [
        Task(
            cell=cell,
            client=0,
            w_P=model.init(Key(cell)),
            local=local,
            seed=cell,
            round=0,
            call=1,
            offset_P=None,
            prox=0.0,
        )
        for cell in range(count)
    ]


def assert_close(found: Update, tasks: list[Task]) -> None:
    """Assert that an update is the CPU's, to the rounding of float32."""
    expected = big_trainer("cpu", "vmap").train(tasks)
    torch.testing.assert_close(found.delta_MP, expected.delta_MP, rtol=1e-4, atol=1e-5)
