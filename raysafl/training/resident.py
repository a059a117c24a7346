"""What a process keeps on its device from one pack of runs to the next."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

from raysafl.core.problem import Dataset
from raysafl.training.inputs import Inputs

# The maximum number of recorded steps. One is recorded for each number of tasks that
# are stacked, so cohorts of random sizes need many.
RECORDED = 64


class RecordedStep(Protocol):
    """A recorded step, of which only the size and the graph are looked at here."""

    graph: Any
    nbytes: int


class Resident:
    """The samples of one dataset, and recorded local steps that read them.

    Both are made once and serve one trial after the other. Another dataset drops the
    samples, and with them the steps, whose graphs read the samples at fixed addresses.

    Steps are dropped, the least recently used first, when they are more than RECORDED
    or hold more than `most_bytes` together.

    Attributes:
        most_bytes: the maximum number of bytes that recorded steps hold together,
            unless the latest alone holds more; None as long as there is no limit.

    Example:
        >>> import raysafl as fl
        >>> dataset = fl.Digits().load()
        >>> resident = Resident()
        >>> train, test = resident.samples(dataset, torch.device("cpu"))
        >>> resident.samples(dataset, torch.device("cpu"))[0] is train
        True
    """

    def __init__(self) -> None:
        self.most_bytes: int | None = None
        self._dataset: Dataset | None = None
        self._device: torch.device | None = None
        self._samples: tuple[Inputs, Inputs] | None = None
        self._steps: OrderedDict[Hashable, Any] = OrderedDict()

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
        if key not in self._steps:
            # A new graph shares the memory pool of a graph that still exists. torch refuses
            # a pool whose graphs are all deleted, even while its memory is in use.
            alive = next(iter(self._steps.values()), None)
            self._steps[key] = make(alive.graph.pool() if alive else None)
            self._bound_steps()
        self._steps.move_to_end(key)
        return self._steps[key]

    def forget_steps(self) -> None:
        """Drop all recorded steps, with the memory of their graphs."""
        self._steps.clear()

    @property
    def steps(self) -> list[Any]:
        """The recorded steps that are kept, the least recently used first."""
        return list(self._steps.values())

    def _bound_steps(self) -> None:
        """Drop the steps that were not used for the longest time, but not the latest."""
        while len(self._steps) > 1 and self._is_full():
            self._steps.popitem(last=False)

    def _is_full(self) -> bool:
        """Whether the recorded steps are too many, or hold too many bytes."""
        if len(self._steps) > RECORDED:
            return True
        held = sum(step.nbytes for step in self._steps.values())
        return self.most_bytes is not None and held > self.most_bytes
