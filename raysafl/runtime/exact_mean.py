"""Means of updates that do not depend, bit for bit, on which actor trains whom.

Adding floating-point numbers rounds, so a sum usually depends on its order. To avoid
this, each float32 number is rounded to a multiple of 2^-40 and added in float64.
Float64 adds such numbers without rounding as long as sums stay below 2^53 units of
2^-40, that is below 8,192; the order and the distribution then make no difference. The
first rounding moves a number by at most 2^-41 = 5e-13. Numbers of magnitude 2^-17 or
more are not moved at all, because their 24 bits end at 2^-40 or above. NaN and infinity
are passed on.

A weighted mean is the mean of weighted updates: a task brings its weight along, by which
its float32 update is multiplied first. The weights of a cell have the mean 1.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.work import Task, Trained
from raysafl.kernels.sums import UNITS, add_row

Array = NDArray[Any]


@dataclass(frozen=True)
class ShareResult:
    """The result of one share of a round's tasks, as arrays that can be sent.

    Args:
        columns_5T: The columns of an `Update` except delta, one per task of the share.
        rows: The delta [P] of each task whose cell is not averaged, in order.
        means: The mean [P], in float32, of each averaged cell of which the share holds
            all tasks.
        sums: The sum [P] of each other averaged cell of the share, in units of 2^-40:
            whole numbers, as float64.
    """

    columns_5T: Array
    rows: Sequence[Array]
    means: Mapping[int, Array]
    sums: Mapping[int, Array]


def count_averaged(tasks: Iterable[Task], averaged: Collection[int]) -> dict[int, int]:
    """Count the tasks of each averaged cell, in the order of their first tasks."""
    return Counter([task.cell for task in tasks if task.cell in averaged])


def complete_cells(
    tasks: Iterable[Task], counts: Mapping[int, int]
) -> tuple[list[int], list[int]]:
    """Return the averaged cells of which all tasks are here, and the other ones.

    Args:
        tasks: A share of a round's tasks.
        counts: The `count_averaged` of all of the round's tasks.
    """
    here = count_averaged(tasks, counts)
    complete = [cell for cell, count in here.items() if count == counts[cell]]
    return complete, [cell for cell, count in here.items() if count < counts[cell]]


def reduce_share(
    tasks: Sequence[Task],
    stacks: Iterable[tuple[Sequence[int], Update]],
    counts: Mapping[int, int],
) -> ShareResult:
    """Sum the updates of the averaged cells and keep the rows of the others.

    Beside the result, only one stack's rows need to be in memory.

    Args:
        tasks: A share of a round's tasks.
        stacks: The positions of some of these tasks, and their updates, until each task
            has come once.
        counts: The `count_averaged` of all of the round's tasks.
    """
    complete, partial = complete_cells(tasks, counts)
    num_parameters = tasks[0].w_P.numel()
    sums = {cell: np.zeros(num_parameters) for cell in (*complete, *partial)}
    row_of = _rows(tasks, counts)
    rows = [np.empty(0, np.float32)] * len(row_of)
    columns_5T = np.empty((5, len(tasks)))
    for positions, (delta_TP, *columns) in stacks:
        columns_5T[:, positions] = torch.stack([c.double() for c in columns]).numpy()
        for i, delta_P in zip(positions, delta_TP.numpy(), strict=True):
            if i in row_of:
                rows[row_of[i]] = _scaled(delta_P, tasks[i].max_norm).copy()
            else:
                sent_P = _scaled(delta_P, tasks[i].max_norm, tasks[i].weight)
                add_row(sums[tasks[i].cell], sent_P)
    means = {cell: _mean_of_sum(sums.pop(cell), counts[cell]) for cell in complete}
    return ShareResult(columns_5T, rows, means, sums)


def combine_shares(
    tasks: Sequence[Task],
    counts: Mapping[int, int],
    shares: Sequence[Sequence[int]],
    results: Sequence[ShareResult],
) -> Trained:
    """Put the results of all shares together.

    The vectors are copies: those that were sent lie in read-only memory, and an
    algorithm may change them, or keep one for a long time.

    Args:
        tasks: All of the round's tasks; those of one cell stand together.
        counts: Their `count_averaged`.
        shares: For each share, the indices of its tasks in ascending order.
        results: The result of each share.
    """
    row_of = _rows(tasks, counts)
    rows = [np.empty(0, np.float32)] * len(row_of)
    columns_5T = np.empty((5, len(tasks)))
    means: dict[int, Array] = {}
    sums: dict[int, Array] = {}
    for share, result in zip(shares, results, strict=True):
        columns_5T[:, share] = result.columns_5T
        mine = (row_of[i] for i in share if i in row_of)
        for row, delta_P in zip(mine, result.rows, strict=True):
            rows[row] = delta_P
        means |= {cell: mean_P.copy() for cell, mean_P in result.means.items()}
        for cell, sum_P in result.sums.items():
            sums[cell] = sums[cell] + sum_P if cell in sums else sum_P
    means |= {cell: _mean_of_sum(sums[cell], counts[cell]) for cell in sums}

    trained: Trained = {}
    left = iter(rows)
    for cell, own in _columns_of(tasks, columns_5T).items():
        if cell in counts:
            trained[cell] = MeanUpdate(torch.from_numpy(means[cell]), *own)
        else:
            delta_MP = np.stack(list(islice(left, len(own[0]))))
            trained[cell] = Update(torch.from_numpy(delta_MP), *own)
    return trained


def _scaled(delta_P: Array, max_norm: float | None, weight: float = 1.0) -> Array:
    """Scale a float32 update down to its largest L2 norm, and by its weight.

    The norm is summed in float64 by numpy, whose result does not depend on threads.
    """
    scale = weight
    if max_norm is not None:
        norm = float(np.sqrt(np.square(delta_P, dtype=np.float64).sum()))
        if norm > max_norm:
            scale *= max_norm / norm
    return delta_P if scale == 1.0 else delta_P * np.float32(scale)


def _rows(tasks: Sequence[Task], counts: Mapping[int, int]) -> dict[int, int]:
    """Number the tasks whose cells are not averaged: the row of each, by position."""
    kept = [i for i, task in enumerate(tasks) if task.cell not in counts]
    return {i: row for row, i in enumerate(kept)}


def _columns_of(
    tasks: Sequence[Task], columns_5T: Array
) -> dict[int, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Return each cell's columns of an `Update` after delta, with their types."""
    sizes = Counter([task.cell for task in tasks])
    steps_T, rate_T, samples_T, loss_T, accuracy_T = torch.from_numpy(columns_5T)
    columns = (steps_T.long(), rate_T.float(), samples_T.long(), loss_T, accuracy_T)
    split = [column.split(list(sizes.values())) for column in columns]
    return dict(zip(sizes, zip(*split, strict=True), strict=True))


def _mean_of_sum(sum_P: Array, count: int) -> Array:
    """Return the mean as float32 from a sum in units of 2^-40."""
    return (sum_P / (UNITS * count)).astype(np.float32)
