"""What tasks come to, share by share: means that do not depend on who summed what, bitwise.

A float32 number is rounded to a multiple of 2^-40 and summed in float64, which adds such numbers
without rounding while sums stay below 2^53 of these units: 8,192. So a sum is the same in any
order and over any shares. Rounding moves a number by at most 2^-41 = 5e-13, and one of 2^-17 or
more, whose own 24 bits end there, not at all. NaN and infinity come through.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import Update
from raysafl.core.work import Task
from raysafl.kernels.sums import UNITS, add_row

Array = NDArray[Any]


class Reply(NamedTuple):
    """What a share of the tasks comes to, as arrays: this is what an actor sends back."""

    columns_5T: Array  # an update's other columns
    delta_KP: Array  # of the tasks that want rows, in order
    means_GP: Sequence[Array]  # of each replicate that wants the mean: that, float32, if the share
    # has all of its tasks, else the share's `exact_sum`, float64


def exact_sum(rows_MP: Tensor, of: Sequence[int] | None = None) -> Tensor:
    """The sum of float32 rows (or of some) in units of 2^-40: [P] whole numbers, as float64."""
    rows, sum_P = rows_MP.numpy(), np.zeros(rows_MP.shape[1])
    for i in range(len(rows)) if of is None else of:
        add_row(sum_P, rows[i])
    return torch.from_numpy(sum_P)


def averaged(tasks: Sequence[Task]) -> Counter[int]:
    """The replicates that want the mean, in order, and over how many of these tasks."""
    return Counter(task.replicate for task in tasks if task.mean)


def _mean(sum_P: Array, count: int) -> Array:
    return (sum_P / (UNITS * count)).astype(np.float32)


def reduce(tasks: Sequence[Task], update: Update, counts: Mapping[int, int]) -> Reply:
    """Rows of the tasks that want them, and sums of those that want the mean.

    `counts`: the `averaged` of all tasks, of which these may be a share.
    """
    delta_TP, *columns = update
    own = [i for i, task in enumerate(tasks) if not task.mean]
    members: dict[int, list[int]] = {}
    for i, task in enumerate(tasks):
        if task.mean:
            members.setdefault(task.replicate, []).append(i)
    sums = {r: exact_sum(delta_TP, at).numpy() for r, at in members.items()}
    return Reply(
        torch.stack([column.double() for column in columns]).numpy(),
        delta_TP[own].numpy(),
        [_mean(s, counts[r]) if len(members[r]) == counts[r] else s for r, s in sums.items()],
    )


def combine(
    tasks: Sequence[Task], shares: Sequence[Sequence[int]], replies: Sequence[Reply]
) -> Update:
    """The update of all tasks from the replies to shares of them."""
    columns_5T, counts = np.empty((5, len(tasks))), averaged(tasks)
    rows, sums, means = dict[int, Array](), dict[int, Array](), dict[int, Array]()
    for share, reply in zip(shares, replies, strict=True):
        columns_5T[:, share] = reply.columns_5T
        rows |= zip((i for i in share if not tasks[i].mean), reply.delta_KP, strict=True)
        own = averaged([tasks[i] for i in share])
        for (r, n), mean_P in zip(own.items(), reply.means_GP, strict=True):
            if n == counts[r]:
                means[r] = mean_P
            else:
                sums[r] = sums[r] + mean_P if r in sums else mean_P
    means |= {r: _mean(sum_P, counts[r]) for r, sum_P in sums.items()}
    deltas = []
    for i, task in enumerate(tasks):
        if not task.mean:
            deltas.append(rows[i])
        elif task.replicate in means:
            deltas.append(means.pop(task.replicate))
    steps, rate, samples, loss, accuracy = torch.from_numpy(columns_5T)
    return Update(
        torch.from_numpy(np.stack(deltas)),
        steps.long(),
        rate.float(),
        samples.long(),
        loss,
        accuracy,
    )
