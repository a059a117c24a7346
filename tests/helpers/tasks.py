"""Tasks one by one, and the mini-batches that they draw, as NumPy draws them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import ContinuedTraining, LocalTraining, Update
from raysafl.core.work import Tasks, Training
from raysafl.training.inputs import batch_width
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


def columns(tasks: Iterable[Task], averaged: Iterable[int] = ()) -> Tasks:
    """These tasks as columns; the means of some cells are asked for."""
    tasks = list(tasks)
    whole = Tasks.of(
        [
            Training(
                cell=task.cell,
                clients=[task.client],
                w=task.w_P,
                local=task.local,
                seed=task.seed,
                round=task.round,
                call=task.call,
                offset_MP=None if task.offset_P is None else task.offset_P[None],
                prox=task.prox,
                weights=[task.weight],
                before=[task.before],
                moments=[task.moments] if task.moments else [],
            )
            for task in tasks
        ]
    )
    # Tasks with one start share it.
    numbers: dict[int, int] = {}
    first = [numbers.setdefault(id(v), k) for k, v in enumerate(whole.vectors)]
    whole.columns["start"] = np.array(first)[whole.columns["start"]]
    cells = [task.cell for task in tasks]
    averaged = set(averaged)
    counts = [cells.count(cell) if cell in averaged else 0 for cell in cells]
    whole.columns["averaged"] = counts
    return whole


def draw_batches(
    num_samples: int,
    local: LocalTraining,
    rng: np.random.Generator,
    before: int = 0,
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


class Trainer(LocalTrainer):
    """A trainer that is given tasks one by one."""

    def train_stacks(
        self, tasks: Sequence[Task] | Tasks
    ) -> Iterator[tuple[NDArray[np.int64], Update]]:
        whole = tasks if isinstance(tasks, Tasks) else columns(tasks)
        return super().train_stacks(whole)
