"""The code of a client actor, which trains and evaluates what the coordinator sends.

An actor hosts all clients of a pack's runs, not one of them. It is a cache: each call
names the pack's setup, and an actor that has another one, or that Ray has just started
again, gets ready for it first.
"""

import platform
from collections.abc import Sequence

import ray
import torch

from raysafl.cluster.gpus import own_device, own_share
from raysafl.cluster.provenance import package_digest
from raysafl.core.problem import Dataset
from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import PackSetup, Sent, packed, unpacked
from raysafl.training.device import keep_to_share
from raysafl.training.resident import Resident


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
