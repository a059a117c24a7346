"""Samples on a device, the mini-batches that tasks draw from them, and tasks in stacks."""

import warnings
from collections.abc import Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import (
    ContinuedTraining,
    Count,
    LocalTraining,
    by_steps,
)
from raysafl.core.problem import Samples
from raysafl.core.randomness import checksum
from raysafl.core.work import Ints, Tasks
from raysafl.models.layers import RandomWords

# Samples for compiled loops: inputs x_SD as they are stored, classes y_S, scale and
# shift. The model sees x * scale + shift.
Stored: TypeAlias = tuple[NDArray[Any], NDArray[np.int64], np.float32, np.float32]

# The maximum number of tasks that are stacked.
STACK = 32
# Clients with less than one batch are padded to a multiple of this width, so that more
# of them have equal widths and can be stacked.
WIDTH_STEP = 8


class Held(NamedTuple):
    """The samples that the clients of tasks hold, at least one each.

    Args:
        flat_S: The positions of samples, those of one client one after another.
        start_T: Where those of each task's client begin.
        samples_T: How many they are.
    """

    flat_S: Ints
    start_T: Ints
    samples_T: Ints

    @classmethod
    def of(cls, parts: Sequence[Ints]) -> Self:
        """Return the samples of tasks from an array for each."""
        samples_T = np.array([len(part) for part in parts])
        return cls(np.concatenate(parts), np.cumsum(samples_T) - samples_T, samples_T)

    def part(self, some: Ints) -> "Held":
        """Return the samples of some of the tasks."""
        return Held(self.flat_S, self.start_T[some], self.samples_T[some])


class StepCounts(NamedTuple):
    """How many steps each task takes, and with how many samples.

    Args:
        steps_T: The number of local steps.
        width_T: The `batch_width`.
    """

    steps_T: Ints
    width_T: Ints

    @classmethod
    def of(cls, tasks: Tasks, samples_T: Ints) -> Self:
        """Return the steps of tasks whose clients hold so many samples."""
        steps_T = np.empty_like(samples_T)
        width_T = np.empty_like(samples_T)
        before_T = tasks.columns["before"]
        for local, own in tasks.alike(by_steps):
            steps_T[own] = local.num_steps(samples_T[own], before_T[own])
            width_T[own] = batch_width(samples_T[own], local)
        return cls(steps_T, width_T)

    def part(self, some: Ints) -> "StepCounts":
        """Return the steps of some of the tasks."""
        return StepCounts(self.steps_T[some], self.width_T[some])

    def stacks(self, tasks: Tasks, size_of: Callable[[int, int], int]) -> list[Ints]:
        """Group tasks that take their steps together.

        Args:
            tasks: The tasks.
            size_of: Returns the number of tasks in a stack, of the batch width and the
                number of tasks of that width.

        Returns:
            The positions of each stack's tasks: equal in batch width, in optimizer, in
            whether gradients are clipped and in whether optimizers are kept, sorted by
            their numbers of steps, the longest first.
        """
        kinds = [
            (local.optimizer, local.momentum > 0, local.clip_norm is not None)
            for local in tasks.locals
        ]
        rank_of = {kind: rank for rank, kind in enumerate(sorted(set(kinds)))}
        kind_T = np.array([rank_of[kind] for kind in kinds])[tasks.columns["local"]]
        # A GPU changes the moments of tasks that have taken all their steps, so those that
        # are kept must end together.
        ends_T = np.where(tasks.columns["moments"] < 0, 0, self.steps_T)
        key_T = (self.width_T * len(kinds) + kind_T) * (ends_T.max() + 1) + ends_T
        order = np.lexsort((-self.steps_T, key_T))
        sorted_T = key_T[order]
        (changes,) = (sorted_T[1:] != sorted_T[:-1]).nonzero()
        stacks: list[Ints] = []
        for start, stop in pairwise([0, *(changes + 1).tolist(), len(order)]):
            size = size_of(int(self.width_T[order[start]]), stop - start)
            stacks += [order[i : min(i + size, stop)] for i in range(start, stop, size)]
        return stacks


class Plan(NamedTuple):
    """The mini-batches of tasks with one batch width.

    Args:
        index_NB: The training samples of all steps, the steps of a task below each other
            and task after task; -1 where a batch is short.
        steps_T: The number of steps of each task.
    """

    index_NB: Ints
    steps_T: Ints

    def stacked(self) -> Ints:
        """Return the samples [K, T, B] of each step, -1 where there are none."""
        shape = (self.steps_T.max(), len(self.steps_T), self.index_NB.shape[1])
        stacked = np.full(shape, -1)
        task_N = np.repeat(np.arange(len(self.steps_T)), self.steps_T)
        first_N = np.repeat(np.cumsum(self.steps_T) - self.steps_T, self.steps_T)
        step_N = np.arange(len(task_N)) - first_N
        stacked[step_N, task_N] = self.index_NB
        return stacked

    def samples_T(self) -> Ints:
        """Return the number of samples that each task sees."""
        seen_N = (self.index_NB >= 0).sum(1)
        return np.add.reduceat(seen_N, np.cumsum(self.steps_T) - self.steps_T)


class Batch(NamedTuple):
    """What an engine computes the gradients of T tasks from, of B samples each.

    Args:
        w_TP: [T, P] parameters, one task a row.
        x_TB: [T, B, ...] inputs.
        y_TB: [T, B, ...] targets.
        weight_TB: [T, B] weights of the samples, 0 for absent ones.
        seed_T: [T] int64 seeds for dropout; None computes without dropout.
    """

    w_TP: Tensor
    x_TB: Tensor
    y_TB: Tensor
    weight_TB: Tensor
    seed_T: Tensor | None


class Gradients(NamedTuple):
    """What an engine returns for T tasks of B samples each."""

    # Gradients of the weighted losses.
    g_TP: Tensor
    # Each sample's loss, without its weight.
    loss_TB: Tensor
    # Whether each sample was classified correctly, or which share of its tokens was;
    # None if the objective has no accuracy.
    correct_TB: Tensor | None = None


def by_passes(local: LocalTraining) -> Hashable:
    """Return by what local trainings differ in how a client goes through its samples."""
    if not isinstance(local, ContinuedTraining):
        return None
    return local.shuffle, local.steps is None


def batch_width(num_samples: Count, local: LocalTraining) -> Count:
    """Return the width B of the mini-batches of a client with so many samples.

    It depends on this client alone: it is the batch size, or for a client with less
    than one batch the number of its samples rounded up to a multiple of 8. So a
    client's matrix products have the same shapes, and the same rounding, whichever
    clients it is stacked with.
    """
    width: Count = np.minimum(
        local.batch_size, -(-num_samples // WIDTH_STEP) * WIDTH_STEP
    )
    return width


def draw_plan(tasks: Tasks, held: Held, steps: StepCounts) -> Plan:
    """Draw the mini-batches of tasks with one batch width.

    Each pass over a client's data is a fresh permutation that is cut into batches; the
    last batch of a pass may be short. `ContinuedTraining` may go on within a pass, and
    may keep the samples in their order.

    Args:
        tasks: The tasks.
        held: The samples that their clients hold.
        steps: The steps of these tasks.
    """
    # Imported here, because numba takes some tenths of a second to import.
    from raysafl.kernels.draws import draw_batches

    column = tasks.columns
    purpose_T = purposes(tasks, "batches")
    batches_T = -(-held.samples_T // steps.width_T)
    round_T = column["round"].astype(np.int64)
    first_T = np.zeros_like(steps.steps_T)
    shuffled_T = np.ones(len(tasks), bool)
    for local, own in tasks.alike(by_passes):
        if isinstance(local, ContinuedTraining):
            shuffled_T[own] = local.shuffle
            if local.steps:
                # A pass may last several rounds, so its order goes by its own number.
                purpose_T[own] = checksum("pass")
                round_T[own], first_T[own] = np.divmod(
                    column["before"][own], batches_T[own]
                )
    index_NB = np.empty((steps.steps_T.sum(), steps.width_T[0]), np.int64)
    draw_batches(
        (column["seed"], purpose_T, column["client"], round_T, shuffled_T),
        (*held, batches_T),
        (first_T, steps.steps_T),
        index_NB,
    )
    return Plan(index_NB, steps.steps_T)


def step_seeds(tasks: Tasks, steps_T: Ints) -> Ints:
    """Draw a seed of dropout and augmentation for each step and task, [K, T].

    Args:
        tasks: the tasks, the longest first.
        steps_T: how many steps each of them takes.
    """
    from raysafl.kernels.draws import draw_seeds

    column = tasks.columns
    seed_KT = np.zeros((steps_T.max(), len(tasks)), np.int64)
    purpose_T = purposes(tasks, "dropout")
    keys = (column["seed"], purpose_T, column["client"], column["round"])
    draw_seeds(keys, steps_T, seed_KT)
    return seed_KT


def purposes(tasks: Tasks, purpose: str) -> Ints:
    """Return the checksum of a purpose and the number of the request, for each task."""
    call_T = tasks.columns["call"]
    purpose_T = np.empty(len(tasks), np.int64)
    for call in set(call_T.tolist()):
        purpose_T[call_T == call] = checksum(f"{purpose} {call}")
    return purpose_T


class Inputs:
    """Samples on a device, kept as they are stored and scaled when a batch is read.

    Images that are stored as uint8 are gathered as uint8 and only then converted to
    float32, which moves a quarter of the bytes. Tokens (int64) are neither converted
    nor scaled. Targets that are numbers (float32) have the shape [n, K], also where
    there is one per sample.
    """

    def __init__(self, samples: Samples, device: torch.device) -> None:
        x = as_tensor(samples.x).to(device).contiguous()
        self.x = x.float() if x.dtype == torch.float16 else x
        y = as_tensor(samples.y).to(device)
        # Classes may be stored as shorter integers.
        y = y if y.is_floating_point() else y.long()
        self.y = y.unsqueeze(1) if y.is_floating_point() and y.ndim == 1 else y
        self.augment = samples.augment
        self.scale = samples.scale
        self.shift = samples.shift

    def at(
        self, index_TB: Tensor, seed_T: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at these positions, in the shape of the index.

        Args:
            index_TB: positions among the samples, an int64 tensor of any shape.
            seed_T: see `x_at`.

        Returns:
            x [*index shape, ...], float32 or tokens; y [*index shape, ...].
        """
        return self.x_at(index_TB, seed_T), self.y[index_TB]

    def x_at(self, index_TB: Tensor, seed_T: Tensor | None = None) -> Tensor:
        """Return the inputs at these positions, without the targets.

        Args:
            index_TB: positions among the samples, an int64 tensor of any shape.
            seed_T: for each row of two dimensions the seed by which its images are
                augmented, if they are; None: they are not.
        """
        x = self.x.index_select(0, index_TB.flatten())
        if self.augment is not None and seed_T is not None:
            words = RandomWords(seed_T.unsqueeze(1))
            words_3TB = [words.at(index_TB.int(), -n) for n in (1, 2, 3)]
            x = self.augment.applied(x, torch.stack(words_3TB).flatten(1))
        return self._scaled(x).view(*index_TB.shape, *x.shape[1:])

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return inputs (float32 or tokens) and targets from `start` up to `stop`."""
        return self._scaled(self.x[start:stop]), self.y[start:stop]

    def stored(self, rows: slice | Tensor = slice(None)) -> Stored:
        """Return samples as they are stored, each as one row, for compiled loops.

        Args:
            rows: which samples; those of a slice are not copied.
        """
        x_SD = self.x[rows].flatten(1).numpy()
        y_S = self.y[rows].numpy()
        return x_SD, y_S, np.float32(self.scale), np.float32(self.shift)

    def _scaled(self, x: Tensor) -> Tensor:
        """Return x * scale + shift as float32; tokens as they are."""
        if x.dtype == torch.int64:
            return x
        # The stored samples must not change.
        x = x.to(torch.float32, copy=True)
        x = x if self.scale == 1 else x.mul_(self.scale)
        return x.add_(self.shift) if self.shift else x


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the array's memory, which nobody may write to.

    The array may be a read-only view of Ray's object store, of which torch warns.
    """
    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="The given NumPy array is not writable"
        )
        return torch.from_numpy(array)
