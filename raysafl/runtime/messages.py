"""What travels between a pack's coordinator and its client actors, and in which form.

A message is one pickle. What is small travels as bytes inside Ray's own message: Ray
packs them in a third of the time that arrays take. What is large travels through Ray's
object store, and nobody copies its arrays on the way.
"""

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
from numpy.typing import NDArray
from ray.cloudpickle import CloudPickler
from torch import Tensor

from raysafl.core.objective import Objective
from raysafl.core.problem import Dataset, Model
from raysafl.core.work import Cell
from raysafl.objectives import PLAIN
from raysafl.training.inputs import as_tensor

# Bytes from which on Ray sends what it is given through its object store.
LARGE = 100_000
# Bytes from which on an array that several actors are sent is put there once.
SHARED = 1_000_000
# A message: bytes, or if it is large, the pickle and the contents of its arrays.
Array = NDArray[Any]
Sent: TypeAlias = "bytes | tuple[bytes, list[Any]]"


@dataclass(frozen=True)
class PackSetup:
    """What a client actor needs to know of a pack's runs before their first round.

    Args:
        cells: The cells, one for each replicate of each run.
        dataset: The training and test samples, or a reference to them in Ray's object
            store.
        model: The recipe of the model.
        engine: The engine's name, or "auto" for the one that is chosen for the model.
        frozen: The values of the model's frozen parameters by name. They replace those
            that the actor's own build gives, which may differ in the last digits on
            another kind of processor.
        objective: What the model is trained for, and by what it is judged.
    """

    cells: Sequence[Cell]
    dataset: "Dataset | ray.ObjectRef[Dataset]"
    model: Model
    engine: str
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    objective: Objective = PLAIN


class _Pickler(CloudPickler):
    """Pickles tensors as arrays, whose contents need no copy, and one tensor once."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor:
            return as_tensor, (obj.numpy(),)
        return CloudPickler.reducer_override(self, obj)


def packed(*values: Any, stored: dict[int, Any] | None = None) -> Sent:
    """Return values in the form in which they travel; tensors must be on the CPU.

    Args:
        values: The values.
        stored: Ray's references to large arrays that are in other messages, too, by
            their addresses; more are added. None if no other message has any of them.

    Example:
        >>> import torch
        >>> values = unpacked(packed(torch.ones(2), [torch.zeros(30_000), "a"]))
        >>> values[0], values[1][0].shape, values[1][1]
        (tensor([1., 1.]), torch.Size([30000]), 'a')
    """
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler: Any = _Pickler
    pickler(file, protocol=5, buffer_callback=buffers.append).dump(values)
    pickled = file.getvalue()
    arrays = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    if len(pickled) + sum(array.nbytes for array in arrays) <= LARGE:
        return pickle.dumps((pickled, buffers), protocol=5)
    if stored is None:
        return pickled, arrays
    return pickled, [_stored(array, stored) for array in arrays]


def unpacked(sent: Sent) -> tuple[Any, ...]:
    """Return the values that `packed` was given; nobody may write to their tensors."""
    pickled, buffers = pickle.loads(sent) if isinstance(sent, bytes) else sent
    arrays = [ray.get(b) if isinstance(b, ray.ObjectRef) else b for b in buffers]
    values: tuple[Any, ...] = pickle.loads(pickled, buffers=arrays)
    return values


def _stored(array: Array, stored: dict[int, Any]) -> Any:
    """Return an array, or if it is large, Ray's reference to it."""
    if array.nbytes < SHARED:
        return array
    address = array.ctypes.data
    if address not in stored:
        stored[address] = ray.put(array)
    return stored[address]
