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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.means import UNITS
from raysafl.core.work import Ints, Tasks, Training
from raysafl.training.device import download, upload, wait_for_downloads

Array = NDArray[Any]

# The largest number of bytes of float64 rows that a GPU holds to add them to sums.
ADDED_BYTES = 2**27


@dataclass(frozen=True)
class ShareResult:
    """The result of one share of a round's tasks, as arrays that can be sent.

    Args:
        columns_5T: The columns of an `Update` except delta, one per task of the share.
        rows_TP: The deltas of the tasks whose own updates are asked for, in order.
        sums_CP: Of the averaged cells of the share, in order, the means, in float32, if the
            share holds all tasks of each; otherwise the sums in units of 2^-40: whole
            numbers, as float64.
        moments_VP: What the clients of tasks with moments keep of their optimizers, the
            vectors of one after those of another, in order.
    """

    columns_5T: Array
    rows_TP: Array
    sums_CP: Array
    moments_VP: Array


class AveragedCells(NamedTuple):
    """The cells of which the mean is asked for, among those of some tasks.

    Args:
        first_C: The first task of each.
        count_C: The number of updates in the mean.
        index_T: Which of these cells each task belongs to, if it belongs to one.
        is_whole: Whether all tasks of all of these cells are among the tasks.
    """

    first_C: Ints
    count_C: Ints
    index_T: Ints
    is_whole: bool

    @classmethod
    def of(cls, tasks: Tasks) -> Self:
        """Find the averaged cells of some tasks."""
        starts, sizes = tasks.cells()
        count = tasks.columns["averaged"][starts]
        some = count > 0
        index_T = (some.cumsum() - 1).repeat(sizes)
        is_whole = bool((sizes == count)[some].all())
        return cls(starts[some], count[some], index_T, is_whole)


def rows_of_moments(tasks: Tasks, some: Ints) -> Ints:
    """Return where the moments of some tasks are in a `ShareResult` of all of them."""
    num_moments_T = tasks.num_moments()
    count = num_moments_T[some]
    first = (np.cumsum(num_moments_T) - num_moments_T)[some]
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    places: Ints = np.repeat(first, count) + within
    return places


class Reduction:
    """The sums and rows of a share, as far as its tasks are trained.

    Beside the result, only the rows that are added need to be in memory. On a GPU, a stack is
    added by a few operators, however many tasks and cells it has. The rows of cells that are
    not averaged are copied to the CPU after each stack, everything else at the end, and only
    then does this process wait for the GPU.

    Args:
        tasks: A share of a round's tasks.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._averaged_T = tasks.columns["averaged"] > 0
        self._cells = AveragedCells.of(tasks)
        self._row_T = (~self._averaged_T).cumsum() - 1
        # Both are on the device: the sum [P] of each averaged cell, made when the
        # first updates say where they lie; and of each stack the losses and accuracies.
        self._sums_CP: Tensor | None = None
        self._seen_2T: list[Tensor] = []
        # On the CPU: the columns that are known at once; the places of some rows, and the
        # rows, which may still be on their way.
        self._positions: list[Ints] = []
        self._columns_5T = np.empty((5, len(tasks)))
        self._rows: list[tuple[Ints, Array]] = []
        self._moments: list[tuple[Ints, Array]] = []

    def add(self, positions: Ints, update: Update) -> None:
        """Take the updates of the tasks at these positions, without waiting for them."""
        self._positions.append(positions)
        for row, column_T in enumerate(
            (update.steps_M, update.rate_M, update.samples_M)
        ):
            self._columns_5T[row, positions] = column_T.numpy()
        self._seen_2T.append(
            torch.stack([update.loss_M.double(), update.accuracy_M.double()])
        )

        if update.moments_MVP.numel():
            moments_VP = download(update.moments_MVP.flatten(0, 1)).numpy()
            places = rows_of_moments(self._tasks, positions)
            self._moments.append((places, moments_VP))
        sent_TP = self._scaled(positions, update.delta_MP)
        averaged_T = self._averaged_T[positions]
        (kept,) = (~averaged_T).nonzero()
        (added,) = averaged_T.nonzero()
        if len(kept):
            row_TP = download(_taken_rows(sent_TP, kept)).numpy()
            self._rows.append((self._row_T[positions[kept]], row_TP))
        if len(added):
            index = self._cells.index_T[positions[added]]
            self._add(_taken_rows(sent_TP, added), index)

    def result(self) -> ShareResult:
        """Return the share's result, once the updates of all tasks were taken."""
        seen_2T = download(torch.cat(self._seen_2T, 1))
        sums_CP = download(self._means_or_sums())
        wait_for_downloads(self._seen_2T[0].device)

        self._columns_5T[3:, np.concatenate(self._positions)] = seen_2T.numpy()
        return ShareResult(
            self._columns_5T,
            in_places(self._rows),
            sums_CP.numpy(),
            in_places(self._moments),
        )

    def _scaled(self, positions: Ints, delta_TP: Tensor) -> Tensor:
        """Multiply the updates of averaged cells by their weights."""
        weight_T = self._tasks.columns["weight"][positions]
        if (weight_T == 1.0).all():
            return delta_TP
        scale_T = upload(torch.from_numpy(weight_T), delta_TP.device)
        scaled_TP: Tensor = delta_TP * scale_T.float().unsqueeze(1)
        return scaled_TP

    def _add(self, sent_TP: Tensor, index: Ints) -> None:
        """Add rows to the sums of their cells, in units of 2^-40."""
        device = sent_TP.device
        if self._sums_CP is None:
            shape = (len(self._cells.first_C), sent_TP.shape[1])
            self._sums_CP = torch.zeros(shape, dtype=torch.float64, device=device)
        if not sent_TP.is_cuda:
            # Imported here, because numba takes some tenths of a second to import.
            from raysafl.kernels.sums import add_rows

            add_rows(self._sums_CP.numpy(), sent_TP.numpy(), index)
            return
        add_by_operators(
            self._sums_CP, sent_TP, upload(torch.from_numpy(index), device)
        )

    def _means_or_sums(self) -> Tensor:
        """Return the means of averaged cells that are whole, or the sums; see `ShareResult`."""
        if self._sums_CP is None:
            return torch.empty(0)
        if not self._cells.is_whole:
            return self._sums_CP
        # Divided by a number of Python's, a GPU would multiply by its reciprocal, which
        # rounds twice.
        units_C1 = torch.from_numpy(UNITS * self._cells.count_C[:, None].astype(float))
        return self._sums_CP.div_(upload(units_C1, self._sums_CP.device)).float()


def add_by_operators(sums_CP: Tensor, row_TP: Tensor, index_T: Tensor) -> None:
    """Add rows to the sums of their cells, in units of 2^-40, as a GPU does.

    Args:
        sums_CP: [C, P] float64, which is changed.
        row_TP: [T, P] float32 on the same device.
        index_T: [T] the row of `sums_CP` to which each is added.
    """
    # The rows of float64 are made a part at a time, which bounds their memory.
    size = max(1, ADDED_BYTES // (8 * row_TP.shape[1]))
    for part_TP, part_T in zip(row_TP.split(size), index_T.split(size), strict=True):
        units_TP = part_TP.double().mul_(UNITS).round_()
        sums_CP.index_add_(0, part_T, units_TP)


def _taken_rows(row_TP: Tensor, some: Ints) -> Tensor:
    """Return some of the rows; if that is all of them, without a copy."""
    if len(some) in (0, len(row_TP)):
        return row_TP[: len(some)]
    return row_TP.index_select(0, upload(torch.from_numpy(some), row_TP.device))


def in_places(parts: Sequence[tuple[Ints, Array]]) -> Array:
    """Return the matrix that consists of some rows.

    A part that is the whole matrix, in order, is not copied.

    Args:
        parts: The places of some rows in the matrix, and the rows.
    """
    parts = [part for part in parts if len(part[0])]
    if not parts:
        return np.empty((0, 0), np.float32)
    count = sum(len(places) for places, _ in parts)
    places, rows = parts[0]
    if len(parts) == 1 and np.array_equal(places, np.arange(count)):
        return rows
    whole = np.empty((count, *rows.shape[1:]), rows.dtype)
    for places, rows in parts:
        whole[places] = rows
    return whole


def combine_shares(
    asked: Sequence[Training],
    tasks: Tasks,
    shares: Sequence[Sequence[int] | slice],
    results: Sequence[ShareResult],
) -> list[Update | MeanUpdate]:
    """Put the results of all shares together.

    An algorithm may change what it gets, or keep it for a long time. So what was sent,
    which lies in read-only memory, is copied, and each request gets matrices of its own.

    Args:
        asked: The requests of a round.
        tasks: All of their tasks.
        shares: For each share, the indices of its tasks in ascending order.
        results: The result of each share.

    Returns:
        The answer to each request.
    """
    whole = results[0] if len(results) == 1 else _joined(tasks, shares, results)
    columns_5T = np.require(whole.columns_5T, requirements="W")
    steps_T, rate_T, samples_T, loss_T, accuracy_T = columns_5T
    sizes = [request.clients_RM.size for request in asked]
    parts_of_columns = [
        torch.from_numpy(column_T).split_with_sizes(sizes)
        for column_T in (
            steps_T.astype(np.int64),
            rate_T.astype(np.float32),
            samples_T.astype(np.int64),
            loss_T,
            accuracy_T,
        )
    ]
    rows, means, moments = map(_Parts, (whole.rows_TP, whole.sums_CP, whole.moments_VP))
    answers: list[Update | MeanUpdate] = []
    for request, *columns in zip(asked, *parts_of_columns, strict=True):
        shape = replicates, clients = request.clients_RM.shape
        numbers = [column_T.view(shape) for column_T in columns]
        if request.moments_RMVP is None:
            numbers.append(torch.empty(*shape, 0, 0))
        else:
            numbers.append(moments.next(request.moments_RMVP.shape))
        num_parameters = request.w.shape[-1]
        if request.averaged:
            # The mean of one update is the update.
            source = means if clients > 1 else rows
            delta_RP = source.next((replicates, num_parameters))
            answers.append(MeanUpdate(delta_RP, *numbers))
        else:
            answers.append(Update(rows.next((*shape, num_parameters)), *numbers))
    return answers


def _joined(
    tasks: Tasks,
    shares: Sequence[Sequence[int] | slice],
    results: Sequence[ShareResult],
) -> ShareResult:
    """Return what one share of all tasks would have as its result."""
    columns_5T = np.empty((5, len(tasks)))
    all_T = np.arange(len(tasks))
    is_row_T = tasks.columns["averaged"] == 0
    row_T = np.cumsum(is_row_T) - 1
    cells = AveragedCells.of(tasks)
    rows, means, moments = (list[tuple[Ints, Array]]() for _ in range(3))
    # The sums of the cells of which several shares have tasks.
    sums: dict[int, Array] = {}
    for share, result in zip(shares, results, strict=True):
        mine = all_T[share]
        columns_5T[:, mine] = result.columns_5T
        rows.append((row_T[mine[is_row_T[mine]]], result.rows_TP))
        moments.append((rows_of_moments(tasks, mine), result.moments_VP))
        own = AveragedCells.of(tasks[mine])
        index_C = cells.index_T[mine[own.first_C]]
        if own.is_whole:
            means.append((index_C, result.sums_CP))
            continue
        for cell, sum_P in zip(index_C.tolist(), result.sums_CP, strict=True):
            sums[cell] = sums.get(cell, 0.0) + sum_P
    for cell, sum_P in sums.items():
        mean_P = (sum_P / (UNITS * cells.count_C[cell])).astype(np.float32)
        means.append((np.array([cell]), mean_P[None]))
    return ShareResult(columns_5T, *map(in_places, (rows, means, moments)))


class _Parts:
    """A matrix that is cut into tensors, each with memory of its own, to be written to.

    Args:
        matrix: The matrix.
    """

    def __init__(self, matrix: Array) -> None:
        self._matrix = matrix
        self._stop = 0

    def next(self, shape: Sequence[int]) -> Tensor:
        """Return the next rows in this shape [..., P]."""
        start = self._stop
        self._stop += math.prod(shape[:-1])
        part = self._matrix[start : self._stop]
        if len(part) < len(self._matrix) or not part.flags.writeable:
            part = part.copy()
        return torch.from_numpy(part).view(shape)
