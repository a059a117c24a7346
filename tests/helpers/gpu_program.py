"""The program that trains on a GPU, carried out on the CPU, with its operators counted.

The program is made of torch's operators, so the CPU can carry it out. What a GPU alone
has (graphs, streams, pinned memory, its kernels' rounding) is tested by `pytest -m gpu`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raysafl.training import local_step
from raysafl.training.gpu_training import GpuMemory, GpuTraining, bytes_per_sample
from raysafl.training.trainer import LocalTrainer

aten = torch.ops.aten
GIB = 2**30

# These need a number that a GPU has not computed yet, so the host waits for it.
WAITING = {
    aten._local_scalar_dense,
    aten.equal,
    aten.allclose,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.bincount,
}
UNFILLED = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty}
UNFILLED |= {aten.new_empty_strided, aten.empty_permuted}


@dataclasses.dataclass
class Counts:
    """What a GPU would be asked for.

    Args:
        launches: operators outside of recorded steps, and replays of such steps.
        replays: replays of recorded steps.
        nodes: operators within replays.
        waits: operators that need a number which was not computed yet.
        uploads: copies from the CPU's memory to a GPU's.
        upload_bytes: how many bytes they copy.
        downloads: copies back.
        download_bytes: how many bytes they copy.
    """

    launches: int = 0
    replays: int = 0
    nodes: int = 0
    waits: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    downloads: int = 0
    download_bytes: int = 0


class Counting(TorchDispatchMode):
    """Counts the operators of a block; views, and memory that is not filled, are none."""

    active: ClassVar["Counting | None"] = None

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.is_replaying = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Count an operator, and carry it out."""
        out = func(*args, **(kwargs or {}))
        if func is aten.copy_.default and args[0].is_cuda != args[1].is_cuda:
            self._count_copy(source=args[1], target=args[0])
        elif func is aten._to_copy.default and args[0].is_cuda != out.is_cuda:
            self._count_copy(source=args[0], target=out)
        elif func.overloadpacket in WAITING:
            self.counts.waits += 1
        elif func.is_view or func.overloadpacket in UNFILLED:
            pass
        elif self.is_replaying:
            self.counts.nodes += 1
        else:
            self.counts.launches += 1
        return out

    def _count_copy(self, source: Tensor, target: Tensor) -> None:
        if target.is_cuda:
            self.counts.uploads += 1
            self.counts.upload_bytes += source.nbytes
        else:
            self.counts.downloads += 1
            self.counts.download_bytes += source.nbytes


class Replay:
    """Takes the place of a recorded CUDA graph: it carries the program out again.

    As while a graph is recorded, the program is carried out once when this is made. A
    graph repeats what Python had said then, so `counting` notices a program that launches
    other operators in a later step, but not a number of Python that changes.
    """

    def __init__(self, program: Callable[[], Any]) -> None:
        self._program = program
        program()

    def pool(self) -> None:
        """Return no pool: the CPU's memory is not shared out."""

    def replay(self) -> None:
        """Carry the program out, as one launch of many nodes."""
        mode = Counting.active
        if mode is None:
            self._program()
            return
        mode.counts.replays += 1
        mode.counts.launches += 1
        mode.is_replaying = True
        try:
            self._program()
        finally:
            mode.is_replaying = False


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what is asked for in a block."""
    with Counting() as mode, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Counting, "active", mode)
        yield mode.counts


def trains_as_on_a_gpu(
    local: LocalTrainer, patch: pytest.MonkeyPatch, total: int = 80 * GIB
) -> GpuTraining:
    """Let a trainer on the CPU train by the program for GPUs.

    Args:
        local: the trainer.
        patch: puts `Replay` in the place of CUDA graphs, as long as it holds.
        total: the bytes of memory that the GPU would have.
    """
    patch.setattr(local_step, "record", lambda program, pool: Replay(program))
    per_sample = bytes_per_sample(local.model, local.objective, local.inputs)
    memory = GpuMemory(total, per_sample, local.model.num_parameters)
    training = GpuTraining(local.engine, local.inputs, local.resident, memory)
    training.is_recorded = local.engine.can_record
    local.__dict__["_gpu"] = training
    return training
