"""Tasks one by one, and the mini-batches that they draw, as NumPy draws them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raysafl import Model
from raysafl.core.algorithm import ContinuedTraining, LocalTraining, Update
from raysafl.core.problem import Dataset
from raysafl.core.work import Tasks, Training
from raysafl.models import FlatModel
from raysafl.training.inputs import Held, batch_width
from raysafl.training.trainer import LocalTrainer


class Task(NamedTuple):
    """One row of `Tasks`, with what its numbers stand for."""

    cell: int
    client: int
    w_P: Tensor
    local: LocalTraining
    seed: int
    round: int
    call: int
    offset_P: Tensor | None = None
    prox: float = 0.0
    weight: float = 1.0
    before: int = 0
    moments: tuple[Tensor, ...] = ()


def training(tasks: Sequence[Task], averaged: bool = False) -> Training:
    """The request to train these clients of one cell, who may differ in their starts."""
    first = tasks[0]
    offset_1MP = moments_1MVP = None
    if first.offset_P is not None:
        offset_1MP = torch.stack([task.offset_P for task in tasks])[None]  # type: ignore[misc]
    if first.moments:
        moments_1MVP = torch.stack([torch.stack(task.moments) for task in tasks])[None]
    return Training(
        cells_R=np.array([first.cell]),
        seeds_R=np.array([first.seed], np.uint64),
        round=first.round,
        call=first.call,
        clients_RM=np.array([[task.client for task in tasks]]),
        w=torch.stack([task.w_P for task in tasks])[None],
        locals=[first.local],
        offset_RMP=offset_1MP,
        prox_R=np.array([first.prox]),
        averaged=averaged,
        weight_RM=np.array([[task.weight for task in tasks]]),
        before_RM=np.array([[task.before for task in tasks]]),
        moments_RMVP=moments_1MVP,
    )


def columns(tasks: Iterable[Task], averaged: Iterable[int] = ()) -> Tasks:
    """These tasks as columns; the means of some cells are asked for."""
    tasks = list(tasks)
    whole = Tasks.of([training([task]) for task in tasks])
    # Tasks with one start share it.
    starts = {id(task.w_P): task.w_P[None] for task in tasks}
    numbers = {key: number for number, key in enumerate(starts)}
    whole.columns["start"] = [numbers[id(task.w_P)] for task in tasks]
    cells = [task.cell for task in tasks]
    averaged = set(averaged)
    counts = [cells.count(cell) if cell in averaged else 0 for cell in cells]
    whole.columns["averaged"] = counts
    return replace(whole, starts=list(starts.values()))


def draw_batches(
    num_samples: int, local: LocalTraining, rng: np.random.Generator, before: int = 0
) -> NDArray[np.int64]:
    """The mini-batches [K, B] of one client's local training, -1 where one is short.

    Each pass over the data is a fresh permutation that is cut into batches.
    """
    steps = local.num_steps(num_samples, before)
    width = int(batch_width(num_samples, local))
    steps_per_pass = local.batches_per_pass(num_samples)
    first = 0
    shuffle = True
    if isinstance(local, ContinuedTraining):
        first = before % steps_per_pass if local.steps else 0
        shuffle = local.shuffle
    passes = -(-(first + steps) // steps_per_pass)
    positions = np.full((passes, steps_per_pass * width), -1)
    for one_pass in positions:
        order = rng.permutation(num_samples) if shuffle else np.arange(num_samples)
        one_pass[:num_samples] = order
    return positions.reshape(-1, width)[first : first + steps]


def held_by(
    indices_of: Callable[[int, int], NDArray[np.int64]],
) -> Callable[[Tasks], Held]:
    """What finds the samples of tasks' clients, from those of a cell and a client."""

    def held(tasks: Tasks) -> Held:
        owners = tasks.columns[["cell", "client"]].tolist()
        return Held.of([indices_of(cell, client) for cell, client in owners])

    return held


class Trainer(LocalTrainer):
    """A trainer that is given tasks one by one, and the samples of each client."""

    def __init__(
        self,
        model: FlatModel,
        dataset: Dataset,
        indices_of: Callable[[int, int], NDArray[np.int64]],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, dataset, held_by(indices_of), *args, **kwargs)

    def train_stacks(
        self, tasks: Sequence[Task] | Tasks
    ) -> Iterator[tuple[NDArray[np.int64], Update]]:
        whole = tasks if isinstance(tasks, Tasks) else columns(tasks)
        return super().train_stacks(whole)


class Dropping(Model):
    """Two layers, two dropouts; what is dropped is seen in the gradient."""

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the layers for inputs of 64 numbers."""
        first = (nn.Flatten(), nn.Dropout(0.25), nn.Linear(64, 12), nn.ReLU())
        return nn.Sequential(*first, nn.Dropout(0.5), nn.Linear(12, num_classes))
