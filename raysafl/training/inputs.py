"""inputs."""

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Samples
from raysafl.training.linear import Stored


def batches(samples: int, sgd: LocalTraining, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions [K, B] of each local step's mini-batch, padded with -1.

    Each pass is a fresh permutation cut into batches; the last of a pass may be short. B depends
    on this client alone, so that its arithmetic is the same whoever it is stacked with: the
    batch size, or for a client with less than one batch its samples rounded up to eights.
    """
    steps, size = sgd.num_steps(samples), sgd.batch_size
    per_pass = -(-samples // size)
    width = size if samples >= size else min(size, -(-samples // 8) * 8)
    picks = np.full((-(-steps // per_pass), per_pass * width), -1)
    for one_pass in picks:
        one_pass[:samples] = rng.permutation(samples)
    return picks.reshape(-1, width)[:steps]


class Inputs:
    """Samples on a device: batches are gathered as they are stored, then scaled to float.

    Tokens (int64) stay what they are.
    """

    def __init__(self, samples: Samples, device: torch.device) -> None:
        x = as_tensor(samples.x).to(device).contiguous()
        self.x = x.float() if x.dtype == torch.float16 else x
        self.y = as_tensor(samples.y).to(device)
        self.scale, self.shift = samples.scale, samples.shift

    def at(self, index_TB: Tensor) -> tuple[Tensor, Tensor]:
        """(x float32 or tokens, y) at these positions, in the shape of the index."""
        return self.x_at(index_TB), self.y[index_TB]

    def x_at(self, index_TB: Tensor) -> Tensor:
        """The inputs alone."""
        x = self.x.index_select(0, index_TB.flatten())
        return self._scaled(x).view(*index_TB.shape, *x.shape[1:])

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """(x float32 or tokens, y) of a run of samples."""
        return self._scaled(self.x[start:stop]), self.y[start:stop]

    def stored(self, start: int = 0, stop: int | None = None) -> Stored:
        """[N, D] samples as they are stored, labels, scale and shift; on the CPU."""
        x_ND, y_N = self.x[start:stop].flatten(1).numpy(), self.y[start:stop].numpy()
        return x_ND, y_N, np.float32(self.scale), np.float32(self.shift)

    def _scaled(self, x: Tensor) -> Tensor:
        if x.dtype == torch.int64:
            return x
        x = x.to(torch.float32, copy=True)
        x = x if self.scale == 1 else x.mul_(self.scale)
        return x.add_(self.shift) if self.shift else x


def as_tensor(array: NDArray[Any]) -> Tensor:
    """A tensor on the same memory, which may be a read-only view of Ray's object store."""
    with warnings.catch_warnings():  # nothing here writes to it
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
