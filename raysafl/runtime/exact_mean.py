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

Updates are added up where they lie, on the CPU or on a GPU, and the sums are the same.
Only the norm of an update that has a largest norm is itself a sum that rounds, and may
differ in its last digit on a GPU.
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
from raysafl.core.means import UNITS
from raysafl.core.work import Task, Trained
from raysafl.training.device import download, upload, wait_for_downloads

Array = NDArray[Any]

# The largest number of bytes of float64 rows that a GPU holds to add them to sums.
ADDED_BYTES = 2**27


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
    wanted = set(averaged)
    return Counter([task.cell for task in tasks if task.cell in wanted])


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

    Beside the result, only one stack's rows need to be in memory. Updates on a GPU are
    added up there.

    Args:
        tasks: A share of a round's tasks.
        stacks: The positions of some of these tasks, and their updates, until each task
            has come once. The updates are all on the CPU or all on one GPU.
        counts: The `count_averaged` of all of the round's tasks.
    """
    share: ReducedOnCpu | ReducedOnGpu | None = None
    for positions, update in stacks:
        if share is None:
            kind = ReducedOnGpu if update.delta_MP.is_cuda else ReducedOnCpu
            share = kind(tasks, counts)
        share.add(positions, update)
        # The next stack is trained when the loop asks for it. It may need the memory.
        del update
    assert share is not None
    return share.result()


class ReducedOnCpu:
    """The sums and rows of a share whose updates lie on the CPU.

    Args:
        tasks: A share of a round's tasks.
        counts: The `count_averaged` of all of the round's tasks.
    """

    def __init__(self, tasks: Sequence[Task], counts: Mapping[int, int]) -> None:
        self._tasks = tasks
        self._counts = counts
        self._complete, partial = complete_cells(tasks, counts)
        num_parameters = tasks[0].w_P.numel()
        self._sums = {
            cell: np.zeros(num_parameters) for cell in (*self._complete, *partial)
        }
        self._row_of = _row_of_tasks(tasks, counts)
        self._rows = [np.empty(0, np.float32)] * len(self._row_of)
        self._columns_5T = np.empty((5, len(tasks)))

    def add(self, positions: Sequence[int], update: Update) -> None:
        """Take the updates of the tasks at these positions."""
        # Imported here, because numba takes some tenths of a second to import.
        from raysafl.kernels.sums import add_row

        delta_TP, *columns = update
        self._columns_5T[:, positions] = torch.stack(
            [column.double() for column in columns]
        ).numpy()
        for i, delta_P in zip(positions, delta_TP.numpy(), strict=True):
            task = self._tasks[i]
            if i in self._row_of:
                row_P = _scaled(delta_P, task.max_norm).copy()
                self._rows[self._row_of[i]] = row_P
            else:
                sent_P = _scaled(delta_P, task.max_norm, task.weight)
                add_row(self._sums[task.cell], sent_P)

    def result(self) -> ShareResult:
        """Return the share's result, once the updates of all tasks were taken."""
        means = {
            cell: _mean_of_sum(self._sums.pop(cell), self._counts[cell])
            for cell in self._complete
        }
        return ShareResult(self._columns_5T, self._rows, means, self._sums)


class ReducedOnGpu:
    """The sums and rows of a share whose updates lie on a GPU.

    A stack is added by a few operators, however many tasks and cells it has. The rows
    of cells that are not averaged are copied to the CPU after each stack, everything
    else at the end, and only then does this process wait for the GPU.

    It gives the bits of `ReducedOnCpu`, unless an update is longer than its largest
    norm. On tensors of the CPU it works as well, so that this can be tested.

    Args:
        tasks: A share of a round's tasks.
        counts: The `count_averaged` of all of the round's tasks.
    """

    def __init__(self, tasks: Sequence[Task], counts: Mapping[int, int]) -> None:
        self._tasks = tasks
        self._counts = counts
        self._complete, self._partial = complete_cells(tasks, counts)
        cells = [*self._complete, *self._partial]
        self._index_of = {cell: index for index, cell in enumerate(cells)}
        self._row_of = _row_of_tasks(tasks, counts)
        # Both are on the device: the sum [P] of each averaged cell, made when the
        # first updates say where they lie; and of each stack the losses and accuracies.
        self._sums_CP: Tensor | None = None
        self._seen_2T: list[Tensor] = []
        # On the CPU: the numbers of some rows, and these rows, which may still be on
        # their way.
        self._rows: list[tuple[list[int], Tensor]] = []
        self._positions: list[int] = []
        self._columns_5T = np.empty((5, len(tasks)))

    def add(self, positions: Sequence[int], update: Update) -> None:
        """Take the updates of the tasks at these positions, without waiting for them."""
        self._positions += positions
        self._columns_5T[:3, positions] = torch.stack(
            [update.steps_M.double(), update.rate_M.double(), update.samples_M.double()]
        ).numpy()
        self._seen_2T.append(
            torch.stack([update.loss_M.double(), update.accuracy_M.double()])
        )

        sent_TP = self._scaled(positions, update.delta_MP)
        kept = [t for t, i in enumerate(positions) if i in self._row_of]
        added = [t for t, i in enumerate(positions) if i not in self._row_of]
        if kept:
            rows = [self._row_of[positions[t]] for t in kept]
            self._rows.append((rows, download(_selected(sent_TP, kept))))
        if added:
            cells = [self._tasks[positions[t]].cell for t in added]
            self._add(_selected(sent_TP, added), cells)

    def result(self) -> ShareResult:
        """Return the share's result, once the updates of all tasks were taken."""
        seen_2T = download(torch.cat(self._seen_2T, 1))
        means_CP, sums_CP = map(download, self._means_and_sums())
        wait_for_downloads(self._seen_2T[0].device)

        self._columns_5T[3:, self._positions] = seen_2T.numpy()
        rows = [np.empty(0, np.float32)] * len(self._row_of)
        for numbers, row_TP in self._rows:
            for number, row_P in zip(numbers, row_TP.numpy(), strict=True):
                rows[number] = row_P
        return ShareResult(
            self._columns_5T,
            rows,
            dict(zip(self._complete, means_CP.numpy(), strict=True)),
            dict(zip(self._partial, sums_CP.numpy(), strict=True)),
        )

    def _scaled(self, positions: Sequence[int], delta_TP: Tensor) -> Tensor:
        """Scale updates down to their largest norms, and by their weights."""
        tasks = [self._tasks[i] for i in positions]
        weights = [task.weight if task.cell in self._counts else 1.0 for task in tasks]
        limits = [torch.inf if t.max_norm is None else t.max_norm for t in tasks]
        has_limits = min(limits) < torch.inf
        if not has_limits and all(weight == 1.0 for weight in weights):
            return delta_TP

        scale_T, limit_T = upload(
            torch.tensor([weights, limits], dtype=torch.float64), delta_TP.device
        )
        if has_limits:
            norm_T = torch.linalg.vector_norm(delta_TP, dim=1, dtype=torch.float64)
            shorter_T = scale_T * (limit_T / norm_T)
            scale_T = torch.where(norm_T > limit_T, shorter_T, scale_T)
        scaled_TP: Tensor = delta_TP * scale_T.float().unsqueeze(1)
        return scaled_TP

    def _add(self, sent_TP: Tensor, cells: Sequence[int]) -> None:
        """Add rows to the sums of their cells, in units of 2^-40.

        The rows of float64 are made a part at a time, which bounds their memory.
        """
        device = sent_TP.device
        if self._sums_CP is None:
            shape = (len(self._index_of), sent_TP.shape[1])
            self._sums_CP = torch.zeros(shape, dtype=torch.float64, device=device)
        index_T = upload(torch.tensor([self._index_of[c] for c in cells]), device)
        size = max(1, ADDED_BYTES // (8 * sent_TP.shape[1]))
        for part_TP, part_T in zip(
            sent_TP.split(size), index_T.split(size), strict=True
        ):
            units_TP = part_TP.double().mul_(UNITS).round_()
            self._sums_CP.index_add_(0, part_T, units_TP)

    def _means_and_sums(self) -> tuple[Tensor, Tensor]:
        """Return the means of complete cells, and the sums of the others."""
        if self._sums_CP is None:
            return torch.empty(0), torch.empty(0)
        sums_CP, partial_CP = self._sums_CP.tensor_split([len(self._complete)])
        units = [UNITS * self._counts[cell] for cell in self._complete]
        # Divided by a number of Python's, a GPU would multiply by its reciprocal, which
        # rounds twice.
        units_C = upload(torch.tensor(units, dtype=torch.float64), sums_CP.device)
        return (sums_CP / units_C.unsqueeze(1)).float(), partial_CP


def _selected(row_TP: Tensor, some: Sequence[int]) -> Tensor:
    """Return some of the rows; if that is all of them, without a copy."""
    if len(some) == len(row_TP):
        return row_TP
    return row_TP.index_select(0, upload(torch.tensor(some), row_TP.device))


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
    row_of = _row_of_tasks(tasks, counts)
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
    for cell, own in _columns_by_row(tasks, columns_5T).items():
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


def _row_of_tasks(tasks: Sequence[Task], counts: Mapping[int, int]) -> dict[int, int]:
    """Number the tasks whose cells are not averaged: the row of each, by position."""
    kept = [i for i, task in enumerate(tasks) if task.cell not in counts]
    return {i: row for row, i in enumerate(kept)}


def _columns_by_row(
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
