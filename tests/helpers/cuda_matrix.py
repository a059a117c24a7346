"""No wait for the emulated device while a stack is trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from helpers.emulated_cuda import EmulatedCuda
from raysafl.training.engines import Loop, Vmap
from raysafl.training.gpu_training import GpuTraining
from raysafl.training.linear import Linear


@contextmanager
def no_sync_in_training(device: EmulatedCuda) -> Iterator[None]:
    """Forbid that the local training of a stack, or an engine, waits for the device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GpuTraining, "train", _no_sync(device, GpuTraining.train))
        for engine in (Loop, Vmap, Linear):
            patch.setattr(engine, "gradients", _no_sync(device, engine.gradients))
        yield


def _no_sync(device: EmulatedCuda, act: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that must not wait for the device."""

    def acting(*args: Any) -> Any:
        with device.no_sync():
            return act(*args)

    return acting
