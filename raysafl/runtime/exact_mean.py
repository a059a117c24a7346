"""Means of updates that do not depend, bit for bit, on which actor trains whom.

Adding floating-point numbers rounds, so a sum usually depends on its order. To avoid
this, each float32 number is rounded to a multiple of 2^-40 and added in float64.
Float64 adds such numbers without rounding as long as sums stay below 2^53 units of
2^-40, that is below 8,192; the order and the distribution then make no difference. The
first rounding moves a number by at most 2^-41 = 5e-13. Numbers of magnitude 2^-17 or
more are not moved at all, because their 24 bits end at 2^-40 or above. NaN and infinity
are passed on.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
        rows_TP: The delta of each task whose replicate is not averaged, in order.
        means_or_sums: For each averaged replicate of the share, in the order of its
            first task: the mean [P] in float32 if the share holds all tasks of the
            replicate, else the share's `exact_sum` [P] in float64.
    """

    columns_5T: Array
    rows_TP: Array
    means_or_sums: Sequence[Array]


def exact_sum(rows_MP: Tensor, members: Iterable[int] | None = None) -> Tensor:
    """Return the sum of float32 rows in units of 2^-40: [P] whole numbers, as float64.

    Args:
        rows_MP: The rows.
        members: Indices of the rows to add; None means all of them.
    """
    rows = rows_MP.numpy()
    sum_P = np.zeros(rows_MP.shape[1])
    for i in range(len(rows)) if members is None else members:
        add_row(sum_P, rows[i])
    return torch.from_numpy(sum_P)


def count_averaged(tasks: Iterable[Task], averaged: Collection[int]) -> dict[int, int]:
    """Count the tasks of each averaged replicate, in the order of their first tasks."""
    return Counter(task.replicate for task in tasks if task.replicate in averaged)


def reduce_share(
    tasks: Sequence[Task], update: Update, counts: Mapping[int, int]
) -> ShareResult:
    """Sum the updates of the averaged replicates and keep the rows of the others.

    Args:
        tasks: A share of a round's tasks.
        update: One row for each of them.
        counts: The `count_averaged` of all of the round's tasks.
    """
    delta_TP, *columns = update
    unaveraged = [i for i, task in enumerate(tasks) if task.replicate not in counts]
    members = _members(tasks, counts)

    means = []
    for replicate, indices in members.items():
        sum_P = exact_sum(delta_TP, indices).numpy()
        complete = len(indices) == counts[replicate]
        means.append(_mean_of_sum(sum_P, counts[replicate]) if complete else sum_P)

    return ShareResult(
        columns_5T=torch.stack([column.double() for column in columns]).numpy(),
        rows_TP=delta_TP[unaveraged].numpy(),
        means_or_sums=means,
    )


def combine_shares(
    tasks: Sequence[Task],
    counts: Mapping[int, int],
    shares: Sequence[Sequence[int]],
    results: Sequence[ShareResult],
) -> Trained:
    """Put the results of all shares together.

    Args:
        tasks: All of the round's tasks; those of one replicate stand together.
        counts: Their `count_averaged`.
        shares: For each share, the indices of its tasks in ascending order.
        results: The result of each share.
    """
    columns_5T = np.empty((5, len(tasks)))
    unaveraged = [i for i, task in enumerate(tasks) if task.replicate not in counts]
    row_of = {i: row for row, i in enumerate(unaveraged)}
    delta_TP = np.empty((len(unaveraged), results[0].rows_TP.shape[1]), np.float32)
    means: dict[int, Array] = {}
    sums: dict[int, Array] = {}

    for share, result in zip(shares, results, strict=True):
        columns_5T[:, share] = result.columns_5T
        for i, row_P in zip(
            (i for i in share if i in row_of), result.rows_TP, strict=True
        ):
            delta_TP[row_of[i]] = row_P

        present = count_averaged((tasks[i] for i in share), counts)
        for (replicate, count), mean_P in zip(
            present.items(), result.means_or_sums, strict=True
        ):
            if count == counts[replicate]:
                means[replicate] = mean_P
            elif replicate in sums:
                sums[replicate] = sums[replicate] + mean_P
            else:
                sums[replicate] = mean_P

    for replicate, sum_P in sums.items():
        means[replicate] = _mean_of_sum(sum_P, counts[replicate])

    columns = _typed_columns(columns_5T)
    mean_updates = {}
    for replicate, indices in _members(tasks, counts).items():
        # A mean that was sent lies in read-only memory, and an algorithm may change it.
        delta_P = torch.from_numpy(means[replicate].copy())
        own = slice(indices[0], indices[-1] + 1)
        mean_updates[replicate] = MeanUpdate(
            delta_P, *(column[own] for column in columns)
        )
    if counts:
        columns = _typed_columns(columns_5T[:, unaveraged])
    return Trained(Update(torch.from_numpy(delta_TP), *columns), mean_updates)


def _members(tasks: Sequence[Task], counts: Mapping[int, int]) -> dict[int, list[int]]:
    """Return the indices of each averaged replicate's tasks."""
    members: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        if task.replicate in counts:
            members.setdefault(task.replicate, []).append(i)
    return members


def _mean_of_sum(sum_P: Array, count: int) -> Array:
    """Return the mean as float32 from a sum in units of 2^-40."""
    return (sum_P / (UNITS * count)).astype(np.float32)


def _typed_columns(columns_5T: Array) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the columns of an `Update` after delta, with their types."""
    steps_T, rate_T, samples_T, loss_T, accuracy_T = torch.from_numpy(columns_5T)
    return steps_T.long(), rate_T.float(), samples_T.long(), loss_T, accuracy_T
