"""Samples on a device, and the mini-batches that local training draws from them."""

import warnings
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Samples

# Samples for compiled loops: inputs x_SD as they are stored, classes y_S, scale and
# shift. The model sees x * scale + shift.
Stored: TypeAlias = tuple[NDArray[Any], NDArray[np.int64], np.float32, np.float32]

# Clients with less than one batch are padded to a multiple of this width, so that more
# of them have equal widths and can be stacked.
WIDTH_STEP = 8


def batch_width(num_samples: int, local: LocalTraining) -> int:
    """Return the width B of the mini-batches of a client with so many samples.

    It depends on this client alone: it is the batch size, or for a client with less
    than one batch the number of its samples rounded up to a multiple of 8. So a
    client's matrix products have the same shapes, and the same rounding, whichever
    clients it is stacked with.
    """
    return min(local.batch_size, -(-num_samples // WIDTH_STEP) * WIDTH_STEP)


def draw_batches(
    num_samples: int, local: LocalTraining, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the mini-batches of one client's local training.

    Each pass over the data is a fresh permutation that is cut into batches; the last
    batch of a pass may be short.

    Args:
        num_samples: the number of samples that the client holds, at least 1.
        local: says how many steps and how large a batch.
        rng: the client's random stream for this round.

    Returns:
        [K, B] positions among the client's samples, for each of K local steps of width
        `batch_width`; -1 where a batch is short.

    Example:
        >>> import raysafl as fl
        >>> local = fl.LocalTraining(lr=0.1, batch_size=2, epochs=1)
        >>> draw_batches(3, local, np.random.default_rng(0)).tolist()
        [[2, 0], [1, -1]]
    """
    steps = local.num_steps(num_samples)
    width = batch_width(num_samples, local)
    steps_per_pass = -(-num_samples // local.batch_size)
    passes = -(-steps // steps_per_pass)
    positions = np.full((passes, steps_per_pass * width), -1)
    for one_pass in positions:
        one_pass[:num_samples] = rng.permutation(num_samples)
    return positions.reshape(-1, width)[:steps]


class Inputs:
    """Samples on a device, kept as they are stored and scaled when a batch is read.

    Images that are stored as uint8 are gathered as uint8 and only then converted to
    float32, which moves a quarter of the bytes. Tokens (int64) are neither converted
    nor scaled. Targets that are numbers (float32) have the shape [n, K], also where
    there is one per sample.
    """

    def __init__(self, samples: Samples, device: torch.device) -> None:
        x = as_tensor(samples.x).to(device).contiguous()
        self.x = x.float() if x.dtype == torch.float16 else x
        y = as_tensor(samples.y).to(device)
        self.y = y.unsqueeze(1) if y.is_floating_point() and y.ndim == 1 else y
        self.scale = samples.scale
        self.shift = samples.shift

    def at(self, index_TB: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets at these positions, in the shape of the index.

        Args:
            index_TB: positions among the samples, an int64 tensor of any shape.

        Returns:
            x [*index shape, ...], float32 or tokens; y [*index shape, ...].
        """
        return self.x_at(index_TB), self.y[index_TB]

    def x_at(self, index_TB: Tensor) -> Tensor:
        """Return the inputs at these positions, without the targets."""
        x = self.x.index_select(0, index_TB.flatten())
        return self._scaled(x).view(*index_TB.shape, *x.shape[1:])

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return inputs (float32 or tokens) and targets from `start` up to `stop`."""
        return self._scaled(self.x[start:stop]), self.y[start:stop]

    def stored(self, rows: slice | Tensor = slice(None)) -> Stored:
        """Return samples as they are stored, each as one row, for compiled loops.

        Args:
            rows: which samples; those of a slice are not copied.
        """
        x_SD = self.x[rows].flatten(1).numpy()
        y_S = self.y[rows].numpy()
        return x_SD, y_S, np.float32(self.scale), np.float32(self.shift)

    def _scaled(self, x: Tensor) -> Tensor:
        """Return x * scale + shift as float32; tokens as they are."""
        if x.dtype == torch.int64:
            return x
        # The stored samples must not change.
        x = x.to(torch.float32, copy=True)
        x = x if self.scale == 1 else x.mul_(self.scale)
        return x.add_(self.shift) if self.shift else x


def as_tensor(array: NDArray[Any]) -> Tensor:
    """Return a tensor that shares the array's memory, which nobody may write to.

    The array may be a read-only view of Ray's object store, of which torch warns.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="The given NumPy array is not writable"
        )
        return torch.from_numpy(array)
