"""Which tasks are stacked, and which samples they read in which step."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from raysafl.core.randomness import Key
from raysafl.core.work import Task
from raysafl.training.inputs import draw_batches


def plan_of(task: Task, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the training samples [K, B] of a task's steps, padded with -1.

    Args:
        task: the task.
        indices: the samples that its client holds.
    """
    rng = Key(task.seed, task.round)(f"batches {task.call}", task.client)
    positions = draw_batches(len(indices), task.local, rng)
    plan = indices[positions]
    if len(indices) % positions.shape[1]:
        # The last batch of a pass is short. There the position -1 has picked the
        # last sample, as numpy does; it becomes -1 again.
        plan[positions < 0] = -1
    return plan


def dropout_seeds(
    tasks: Sequence[Task], plans: Sequence[NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Draw a dropout seed for each step and task, [K, T].

    Args:
        tasks: the tasks, the longest first.
        plans: for each its `plan_of`.
    """
    seed_KT = np.zeros((len(plans[0]), len(tasks)), np.int64)
    for t, task in enumerate(tasks):
        rng = Key(task.seed, task.round)(f"dropout {task.call}", task.client)
        steps = len(plans[t])
        seed_KT[:steps, t] = rng.integers(2**62, size=steps)
    return seed_KT


def stacks_of(
    tasks: Sequence[Task],
    samples: Sequence[int],
    widths: Sequence[int],
    size_of: Callable[[int, int], int],
) -> list[list[int]]:
    """Group tasks that take their steps together.

    Args:
        tasks: the tasks.
        samples: the number of samples that each task's client holds.
        widths: the number of samples in a batch of each task, absent ones included.
        size_of: returns the number of tasks in a stack, of the batch width and the
            number of tasks of that width.

    Returns:
        The positions of each stack's tasks: equal in batch width, in optimizer and in
        whether gradients are clipped, sorted by their numbers of steps, the longest
        first.
    """
    groups: dict[tuple[int, str, bool, bool], list[int]] = {}
    for i, (task, width) in enumerate(zip(tasks, widths, strict=True)):
        local = task.local
        kind = (
            width,
            local.optimizer,
            local.momentum > 0,
            local.clip_norm is not None,
        )
        groups.setdefault(kind, []).append(i)

    def longest_first(i: int) -> int:
        return -tasks[i].local.num_steps(samples[i])

    stacks: list[list[int]] = []
    for (width, *_), group in sorted(groups.items()):
        group.sort(key=longest_first)
        size = size_of(width, len(group))
        stacks += [group[i : i + size] for i in range(0, len(group), size)]
    return stacks
