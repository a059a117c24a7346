"""What stays on a device: samples and recorded steps from pack to pack, and parameters."""

import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysafl.core.problem import Dataset
from raysafl.core.work import Ints, Tasks
from raysafl.training.device import upload
from raysafl.training.inputs import Inputs

# The maximum number of recorded steps. One is recorded for each number of tasks that
# are stacked, so cohorts of random sizes need many.
RECORDED = 64


class Resident:
    """The samples of one dataset, and recorded local steps that read them.

    Both are made once and serve one trial after the other. Another dataset drops the
    samples, and with them the steps, whose graphs read the samples at fixed addresses.

    Steps are dropped, the least recently used first, when they are more than RECORDED
    or hold more than `most_bytes` together.

    Attributes:
        steps: the recorded steps that are kept, the least recently used first.
        most_bytes: the maximum number of bytes that recorded steps hold together,
            unless the latest alone holds more.

    Example:
        >>> import raysafl as fl
        >>> dataset = fl.Digits().load()
        >>> resident = Resident()
        >>> train, test = resident.samples(dataset, torch.device("cpu"))
        >>> resident.samples(dataset, torch.device("cpu"))[0] is train
        True
    """

    def __init__(self) -> None:
        self.steps: OrderedDict[Hashable, Any] = OrderedDict()
        self.most_bytes = sys.maxsize
        self._dataset: Dataset | None = None
        self._device: torch.device | None = None
        self._samples: tuple[Inputs, Inputs] | None = None

    def samples(self, dataset: Dataset, device: torch.device) -> tuple[Inputs, Inputs]:
        """Return the training and the test samples of a dataset on a device.

        Args:
            dataset: the dataset, which is held from now on. The samples are those of
                the call before if it is the identical object.
            device: where the samples are needed.
        """
        is_here = dataset is self._dataset and device == self._device
        if self._samples is None or not is_here:
            # What is here goes first: a device may not have room for both.
            self._samples = None
            self.forget_steps()
            self._samples = (
                Inputs(dataset.train, device),
                Inputs(dataset.test, device),
            )
            self._dataset = dataset
            self._device = device
        return self._samples

    def step(self, key: Hashable, make: Callable[[Any], Any]) -> Any:
        """Return the recorded step of a key, which is made at its first use.

        Args:
            key: whatever the step depends on.
            make: makes the step. It is given the pool of memory that the graphs share,
                or None if there is no graph yet.
        """
        if key not in self.steps:
            # A new graph shares the memory pool of a graph that still exists. torch refuses
            # a pool whose graphs are all deleted, even while its memory is in use.
            alive = next(iter(self.steps.values()), None)
            self.steps[key] = make(alive.graph.pool() if alive else None)
            self._bound_steps()
        self.steps.move_to_end(key)
        return self.steps[key]

    def forget_steps(self) -> None:
        """Drop all recorded steps, with the memory of their graphs."""
        self.steps.clear()

    def _bound_steps(self) -> None:
        """Drop the steps that were not used for the longest time, but not the latest."""

        def is_full() -> bool:
            held = sum(step.nbytes for step in self.steps.values())
            return len(self.steps) > RECORDED or held > self.most_bytes

        while len(self.steps) > 1 and is_full():
            self.steps.popitem(last=False)


class Starts(NamedTuple):
    """From where tasks start, as rows of a matrix on their device.

    Args:
        w_VP: The matrix, to which nobody writes.
        row_T: Which of its rows each task starts from.
    """

    w_VP: Tensor
    row_T: Ints


class Parameters:
    """The parameters that were evaluated last, on a GPU, from where the next round starts.

    A matrix is known by where it lies in memory. So whoever gives one to `evaluated` must
    not change it in place afterwards.

    Args:
        device: Where they are needed.
        most_bytes: The maximum number of bytes that they take there; 0 on a CPU.
    """

    def __init__(self, device: torch.device, most_bytes: int) -> None:
        self._device = device
        self._most_bytes = most_bytes
        self._w_VP = torch.empty(0)
        # They are held, so that nothing else comes to lie where one of them does.
        self._blocks: Sequence[Tensor] = []
        self._first_of: dict[Hashable, int] = {}

    def evaluated(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return matrices as one matrix [V, P], which is kept until others are evaluated.

        It is on the device, unless they are too many for that.
        """
        if sum(block.nbytes for block in blocks) > self._most_bytes:
            return blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))
        w_VP, first_of_blocks = self._rows(blocks)
        if w_VP is not self._w_VP:
            self._w_VP = w_VP
            self._blocks = blocks
            places = map(_place, blocks)
            self._first_of = dict(zip(places, first_of_blocks, strict=True))
        row_V = np.concatenate(
            [
                np.arange(first, first + len(block))
                for first, block in zip(first_of_blocks, blocks, strict=True)
            ]
        )
        if np.array_equal(row_V, np.arange(len(w_VP))):
            return w_VP
        return w_VP[upload(torch.from_numpy(row_V), self._device)]

    def starts(self, tasks: Tasks) -> Starts:
        """Return the starts of tasks, all of which are on the device afterwards."""
        w_VP, first_of_blocks = self._rows(tasks.starts)
        ends = np.cumsum([len(block) for block in tasks.starts])
        start_T = tasks.columns["start"].astype(np.int64)
        block_T = np.searchsorted(ends, start_T, side="right")
        moved = np.array(first_of_blocks) - np.append(0, ends[:-1])
        return Starts(w_VP, start_T + moved[block_T])

    def _rows(self, blocks: Sequence[Tensor]) -> tuple[Tensor, list[int]]:
        """Return a matrix on the device, and at which of its rows each block begins.

        It is the one that is kept if all blocks are in it, else a new one.
        """
        firsts = [self._first_of.get(_place(block), -1) for block in blocks]
        if min(firsts) >= 0:
            return self._w_VP, firsts
        w_VP = blocks[0] if len(blocks) == 1 else torch.cat(list(blocks))
        ends = np.cumsum([len(block) for block in blocks]).tolist()
        return upload(w_VP, self._device), [0, *ends[:-1]]


def _place(block: Tensor) -> Hashable:
    """Return what two tensors have in common that are the same in memory."""
    return block.data_ptr(), block.shape, block.stride()
