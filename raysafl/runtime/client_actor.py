"""The code of a client actor, which trains and evaluates what the coordinator sends.

An actor hosts all clients of a pack's runs, not one of them. It is a cache: each call
names the pack's setup, and an actor that has another one, or that Ray has just started
again, gets ready for it first.
"""

import io
import pickle
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.cloudpickle import CloudPickler
from torch import Tensor

from raysafl.cluster.gpus import own_device, own_share
from raysafl.cluster.provenance import package_digest
from raysafl.core.objective import Objective
from raysafl.core.problem import Dataset, Model
from raysafl.core.work import Cell
from raysafl.objectives import PLAIN
from raysafl.runtime.in_process import Worker
from raysafl.training.device import keep_to_share
from raysafl.training.inputs import as_tensor
from raysafl.training.resident import Resident

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


class Clients:
    """The class of client actors: one model, the shared data and many clients.

    From one pack to the next, an actor keeps the dataset and what it has on its device
    of it, so that packs with the same dataset load and upload it once.

    Args:
        threads: Number of threads that torch uses.
    """

    def __init__(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._worker: Worker | None = None
        self._resident = Resident()
        # The id of the setup of the present pack; empty if it is not ready.
        self._setup_id = ""
        # The dataset of the latest reference, and the id of that reference.
        self._dataset: Dataset | None = None
        self._dataset_id = ""

    @property
    def worker(self) -> Worker:
        """What hosts the present pack's clients."""
        assert self._worker is not None, "this actor was not configured"
        return self._worker

    def call(
        self, setup: "Sequence[ray.ObjectRef[PackSetup]]", method: str, message: Sent
    ) -> Sent:
        """Call a method of the `Worker` of a pack.

        Args:
            setup: The one reference to the pack's setup; Ray replaces it by what it
                stands for unless it is inside something.
            method: The name of the method.
            message: Its arguments, `packed`.

        Returns:
            What it returns, `packed`.

        Raises:
            ValueError: The setup does not fit, or Ray gave a GPU that torch does not
                see.
        """
        if setup[0].hex() != self._setup_id:
            self._setup_id = ""
            self.configure(ray.get(setup[0]))
            self._setup_id = setup[0].hex()
        return packed(getattr(self.worker, method)(*unpacked(message)))

    def machine(self) -> tuple[str, str]:
        """Return the name of this machine, and the digest of its raysafl."""
        return platform.node(), package_digest()

    def configure(self, setup: PackSetup) -> None:
        """Host the clients of a pack.

        Raises:
            ValueError: The setup does not fit, or Ray gave a GPU that torch does not
                see.
        """
        # A device may not have room for the old worker and the new one.
        self._worker = None
        device = own_device()
        share = own_share() if device == "cuda" else 1.0
        keep_to_share(share)
        self._worker = Worker(
            setup.cells,
            self._dataset_of(setup),
            setup.model,
            device,
            setup.engine,
            setup.objective,
            self._resident,
            share,
        )
        self.worker.trainer.model.load_frozen(setup.frozen)

    def _dataset_of(self, setup: PackSetup) -> Dataset:
        """Return a pack's dataset: for the reference of the pack before, the same object.

        Ray makes another object each time that it is asked for one.
        """
        if not isinstance(setup.dataset, ray.ObjectRef):
            return setup.dataset
        if self._dataset is None or setup.dataset.hex() != self._dataset_id:
            self._dataset = ray.get(setup.dataset)
            self._dataset_id = setup.dataset.hex()
        return self._dataset


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
