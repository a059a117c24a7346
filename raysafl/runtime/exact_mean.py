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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import MeanUpdate, Update
from raysafl.core.means import UNITS
from raysafl.core.problem import SERVER
from raysafl.core.work import Floats, Ints, Tasks, Trained
from raysafl.training.device import download, upload, wait_for_downloads

Array = NDArray[Any]
T = TypeVar("T")

# The largest number of bytes of float64 rows that a GPU holds to add them to sums.
ADDED_BYTES = 2**27


@dataclass(frozen=True)
class ShareResult:
    """The result of one share of a round's tasks, as arrays that can be sent.

    Args:
        columns_5T: The columns of an `Update` except delta, one per task of the share.
        rows: The delta [P] of each task whose own update is asked for, in order.
        means: The mean [P], in float32, of each averaged cell of which the share holds
            all tasks.
        sums: The sum [P] of each other averaged cell of the share, in units of 2^-40:
            whole numbers, as float64.
        moments: What the client of each task with moments keeps of its optimizer
            [V, P], in order.
    """

    columns_5T: Array
    rows: Sequence[Array]
    means: Mapping[int, Array]
    sums: Mapping[int, Array]
    moments: Sequence[Array] = ()


def reduce_share(tasks: Tasks, stacks: Iterable[tuple[Ints, Update]]) -> ShareResult:
    """Sum the updates of the averaged cells and keep the rows of the others.

    Beside the result, only one stack's rows need to be in memory. Updates on a GPU are
    added up there.

    Args:
        tasks: A share of a round's tasks.
        stacks: The positions of some of these tasks, and their updates, until each task
            has come once. The updates are all on the CPU or all on one GPU.
    """
    reduction = Reduction(tasks)
    for positions, update in stacks:
        reduction.add(positions, update)
        # The next stack is trained when the loop asks for it. It may need the memory.
        del update
    return reduction.result()


class Reduction:
    """The sums and rows of a share, as far as its tasks are trained.

    On a GPU, a stack is added by a few operators, however many tasks and cells it has.
    The rows of cells that are not averaged are copied to the CPU after each stack,
    everything else at the end, and only then does this process wait for the GPU.

    Args:
        tasks: A share of a round's tasks.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._count_T = tasks.columns["averaged"]
        self._averaged_T = self._count_T > 0
        # Of the averaged cells: the first task, the number of updates in the mean, and
        # whether all of them are in this share.
        starts_R, sizes_R = tasks.cells()
        is_averaged_R = self._averaged_T[starts_R]
        self._first_C = starts_R[is_averaged_R]
        self._count_C = self._count_T[self._first_C]
        self._is_complete_C = sizes_R[is_averaged_R] == self._count_C
        # Which of these cells each task belongs to, if it belongs to one.
        self._index_T = np.repeat(np.cumsum(is_averaged_R) - 1, sizes_R)
        # Both are on the device: the sum [P] of each averaged cell, made when the
        # first updates say where they lie; and of each stack the losses and accuracies.
        self._sums_CP: Tensor | None = None
        self._seen_2T: list[Tensor] = []
        # On the CPU: the positions of some tasks, and their rows, which may still be on
        # their way.
        self._rows: list[tuple[Ints, Tensor]] = []
        self._positions: list[Ints] = []
        self._columns_5T = np.empty((5, len(tasks)))
        self._moments: dict[int, Tensor] = {}

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

        if self._tasks.columns["moments"][positions[0]] >= 0:
            moments_TVP = download(update.moments_MVP)
            self._moments |= zip(positions.tolist(), moments_TVP, strict=True)
        sent_TP = self._scaled(positions, update.delta_MP)
        averaged_T = self._averaged_T[positions]
        (kept,) = np.nonzero(~averaged_T)
        (added,) = np.nonzero(averaged_T)
        if len(kept):
            rows = download(_selected(sent_TP, kept))
            self._rows.append((positions[kept], rows))
        if len(added):
            index = self._index_T[positions[added]]
            self._add(_selected(sent_TP, added), index)

    def result(self) -> ShareResult:
        """Return the share's result, once the updates of all tasks were taken."""
        seen_2T = download(torch.cat(self._seen_2T, 1))
        means_CP, sums_CP = map(download, self._means_and_sums())
        wait_for_downloads(self._seen_2T[0].device)

        self._columns_5T[3:, np.concatenate(self._positions)] = seen_2T.numpy()
        rows: dict[int, Array] = {}
        for positions, row_TP in self._rows:
            rows |= zip(positions.tolist(), row_TP.numpy(), strict=True)
        cell_C = self._tasks.columns["cell"][self._first_C]
        complete = cell_C[self._is_complete_C].tolist()
        partial = cell_C[~self._is_complete_C].tolist()
        return ShareResult(
            self._columns_5T,
            in_order(rows),
            dict(zip(complete, means_CP.numpy(), strict=True)),
            dict(zip(partial, sums_CP.numpy(), strict=True)),
            [kept_VP.numpy() for kept_VP in in_order(self._moments)],
        )

    def _scaled(self, positions: Ints, delta_TP: Tensor) -> Tensor:
        """Multiply the updates of averaged cells by their weights."""
        weight_T = np.where(self._averaged_T, self._tasks.columns["weight"], 1.0)
        weight_T = weight_T[positions]
        if (weight_T == 1.0).all():
            return delta_TP
        scale_T = upload(torch.from_numpy(weight_T), delta_TP.device)
        scaled_TP: Tensor = delta_TP * scale_T.float().unsqueeze(1)
        return scaled_TP

    def _add(self, sent_TP: Tensor, index: Ints) -> None:
        """Add rows to the sums of their cells, in units of 2^-40."""
        device = sent_TP.device
        if self._sums_CP is None:
            shape = (len(self._first_C), sent_TP.shape[1])
            self._sums_CP = torch.zeros(shape, dtype=torch.float64, device=device)
        if not sent_TP.is_cuda:
            # Imported here, because numba takes some tenths of a second to import.
            from raysafl.kernels.sums import add_rows

            add_rows(self._sums_CP.numpy(), sent_TP.numpy(), index)
            return
        add_by_operators(
            self._sums_CP, sent_TP, upload(torch.from_numpy(index), device)
        )

    def _means_and_sums(self) -> tuple[Tensor, Tensor]:
        """Return the means of complete cells, and the sums of the others."""
        if self._sums_CP is None:
            return torch.empty(0), torch.empty(0)
        device = self._sums_CP.device
        complete = np.flatnonzero(self._is_complete_C)
        partial = np.flatnonzero(~self._is_complete_C)
        units = UNITS * self._count_C[complete].astype(np.float64)
        # Divided by a number of Python's, a GPU would multiply by its reciprocal, which
        # rounds twice.
        units_C1 = upload(torch.from_numpy(units).unsqueeze(1), device)
        sums_CP = _selected(self._sums_CP, complete)
        partial_CP = (
            _selected(self._sums_CP, partial) if len(partial) else torch.empty(0)
        )
        return sums_CP.div_(units_C1).float(), partial_CP


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


def _selected(row_TP: Tensor, some: Ints) -> Tensor:
    """Return some of the rows; if that is all of them, without a copy."""
    if len(some) == len(row_TP):
        return row_TP
    return row_TP.index_select(0, upload(torch.from_numpy(some), row_TP.device))


def combine_shares(
    tasks: Tasks,
    shares: Sequence[Sequence[int] | slice],
    results: Sequence[ShareResult],
) -> dict[int, Trained]:
    """Put the results of all shares together.

    The vectors are copies: those that were sent lie in read-only memory, and an
    algorithm may change them, or keep one for a long time.

    Args:
        tasks: All of the round's tasks; those of one cell stand together.
        shares: For each share, the indices of its tasks in ascending order.
        results: The result of each share.
    """
    column = tasks.columns
    rows: dict[int, Array] = {}
    kept: dict[int, Array] = {}
    columns_5T = np.empty((5, len(tasks)))
    means: dict[int, Array] = {}
    sums: dict[int, Array] = {}
    all_T = np.arange(len(tasks))
    for share, result in zip(shares, results, strict=True):
        columns_5T[:, share] = result.columns_5T
        mine = all_T[share]
        rows |= zip(
            mine[column["averaged"][mine] == 0].tolist(), result.rows, strict=True
        )
        kept |= zip(
            mine[column["moments"][mine] >= 0].tolist(), result.moments, strict=True
        )
        means |= {cell: mean_P.copy() for cell, mean_P in result.means.items()}
        for cell, sum_P in result.sums.items():
            sums[cell] = sums[cell] + sum_P if cell in sums else sum_P

    starts, sizes_R = tasks.cells()
    totals = _totals_of_cells(column["client"], columns_5T, starts, sizes_R)
    steps_T, rate_T, samples_T, loss_T, accuracy_T = torch.from_numpy(columns_5T)
    sizes = sizes_R.tolist()
    parts_of = {
        "steps_M": steps_T.long().split_with_sizes(sizes),
        "rate_M": rate_T.float().split_with_sizes(sizes),
        "samples_M": samples_T.long().split_with_sizes(sizes),
        "loss_M": loss_T.split_with_sizes(sizes),
        "accuracy_M": accuracy_T.split_with_sizes(sizes),
        # An empty row for each task whose client keeps nothing.
        "moments_MVP": torch.empty(len(tasks), 0, 0).split_with_sizes(sizes),
    }
    cells = column["cell"][starts].tolist()
    counts = column["averaged"][starts].tolist()
    trained: dict[int, Trained] = {}
    for r, start in enumerate(starts.tolist()):
        cell = cells[r]
        count = counts[r]
        some = range(start, start + sizes[r])
        columns = {name: parts[r] for name, parts in parts_of.items()}
        if start in kept:
            moments_MVP = np.stack([kept[i] for i in some])
            columns["moments_MVP"] = torch.from_numpy(moments_MVP)
        update: Update | MeanUpdate
        if count:
            if cell in sums:
                means[cell] = (sums[cell] / (UNITS * count)).astype(np.float32)
            update = MeanUpdate(torch.from_numpy(means[cell]), **columns)
        else:
            delta_MP = np.stack([rows[i] for i in some])
            update = Update(torch.from_numpy(delta_MP), **columns)
        trained[cell] = Trained(
            update,
            steps=totals.steps[r],
            samples=totals.samples[r],
            loss=totals.loss[r],
            correct=totals.correct[r],
        )
    return trained


class Totals(NamedTuple):
    """Of each cell `Trained.steps`, `samples`, `loss` and `correct`."""

    steps: list[int]
    samples: list[int]
    loss: list[float]
    correct: list[float]


def _totals_of_cells(
    client_T: Ints, columns_5T: Floats, starts: Ints, sizes_R: Ints
) -> Totals:
    """Return the totals of each cell.

    A sum of floats has the bits of torch's sum over the cell's tasks alone: sums over
    the rows of a matrix have them.
    """
    steps_T, _, samples_T, *_ = columns_5T
    seen_T = np.where(client_T == SERVER, 0.0, samples_T)
    products_2T = columns_5T[3:] * seen_T
    totals_2R = np.empty((2, len(sizes_R)))
    for size in set(sizes_R.tolist()):
        own = sizes_R == size
        of_cells_2RM = products_2T[:, starts[own, None] + np.arange(size)]
        totals_2R[:, own] = torch.from_numpy(of_cells_2RM).sum(2).numpy()
    whole = (np.add.reduceat(own_T, starts) for own_T in (steps_T, seen_T))
    steps, samples = (sums.astype(np.int64).tolist() for sums in whole)
    loss, correct = totals_2R.tolist()
    return Totals(steps, samples, loss, correct)


def in_order(values: Mapping[int, T]) -> list[T]:
    """Return values in the order of their positions."""
    return [values[i] for i in sorted(values)]
