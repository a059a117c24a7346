"""The code of a client actor, which trains and evaluates what the coordinator sends.

An actor hosts all clients of a pack's runs, not one of them.
"""

import platform
from collections.abc import Mapping, Sequence

import ray
import torch

from raysafl.core.problem import Dataset
from raysafl.core.work import TestsOn
from raysafl.runtime.client_tests import Job
from raysafl.runtime.gpus import are_logical, unseen_message, why_unseen
from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import (
    Array,
    PackSetup,
    Sent,
    TaskMessage,
    encode_reply,
    models_of,
)
from raysafl.runtime.spans import Span
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
        # The dataset of the latest reference, and the id of that reference.
        self._dataset: Dataset | None = None
        self._dataset_id = ""

    @property
    def worker(self) -> Worker:
        """What hosts the present pack's clients."""
        assert self._worker is not None, "this actor was not configured"
        return self._worker

    def configure(self, setup: PackSetup) -> tuple[str, str]:
        """Host the clients of a pack; called again when the actor serves another one.

        Returns:
            The device and the engine in use.

        Raises:
            ValueError: The setup does not fit, or Ray gave a GPU that torch does not
                see.
        """
        # A device may not have room for the old worker and the new one.
        self._worker = None
        frozen = setup.frozen
        if isinstance(frozen, ray.ObjectRef):
            frozen = ray.get(frozen)
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
        self.worker.trainer.model.load_frozen(frozen)
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        return name, self.worker.trainer.engine_name

    def train(self, header: bytes, *vectors: Sent) -> tuple[Sent, ...]:
        """Train the tasks of an encoded `TaskMessage`; return an encoded reply."""
        message = TaskMessage.decode(header, vectors, self._num_parameters)
        return encode_reply(self.worker.train_share(message.tasks, message.counts))

    def evaluate(self, spans: Sequence[Span], *w: Sent) -> Array:
        """Evaluate models on spans: their sums [N, R], one span beside the other.

        See `Worker.span_sums`.
        """
        models = models_of(w, self._num_parameters)
        return self.worker.span_sums(models, spans).numpy()

    def group_sums(
        self,
        jobs: Sequence[tuple[Job, Sequence[int]]],
        cells: Sequence[int],
        *w: Sent,
    ) -> list[Array]:
        """Evaluate models on groups of test samples, see `Worker.group_sums`.

        Args:
            jobs: Jobs, and the numbers of the groups of each.
            cells: The cells whose parameters are sent.
            w: Their parameters.
        """
        models = dict(zip(cells, models_of(w, self._num_parameters), strict=True))
        return [self.worker.group_sums(job, numbers, models) for job, numbers in jobs]

    def personal_qualities(
        self, on: Mapping[int, TestsOn], header: bytes, *vectors: Sent
    ) -> Array:
        """Train the tasks of an encoded `TaskMessage`, and evaluate where they end."""
        message = TaskMessage.decode(header, vectors, self._num_parameters)
        return self.worker.personal_qualities(message.tasks, on)

    def count_correct(
        self, ids: Mapping[int, Sequence[int]], first: int, step: int, *w: Sent
    ) -> list[float]:
        """Count the training samples that each cell's parameters classify correctly.

        Args:
            ids: For each cell, the clients whose samples are looked at.
            first: The index of the first sample that is counted.
            step: From there on, every `step`-th sample is counted.
            w: The parameters of each cell.
        """
        share = slice(first, None, step)
        models = models_of(w, self._num_parameters)
        return [
            self.worker.count_correct(cell, w_P, own, share)
            for (cell, own), w_P in zip(ids.items(), models, strict=True)
        ]

    def _dataset_of(self, setup: PackSetup) -> Dataset:
        """Return a pack's dataset: for the reference of the pack before, the same object.

        Ray replaces a reference by its object only where it is an argument itself, and
        makes another object each time.
        """
        if not isinstance(setup.dataset, ray.ObjectRef):
            return setup.dataset
        if self._dataset is None or setup.dataset.hex() != self._dataset_id:
            self._dataset = ray.get(setup.dataset)
            self._dataset_id = setup.dataset.hex()
        return self._dataset

    @property
    def _num_parameters(self) -> int:
        return self.worker.trainer.model.num_parameters


def own_share() -> float:
    """Return the share of its GPU that Ray gave this actor: 1 if it is whole."""
    resources = ray.get_runtime_context().get_assigned_resources()
    return min(1.0, float(resources.get("GPU", 1.0)))


def own_device() -> str:
    """Return the device of this actor: "cuda" if Ray gave it a GPU, else "cpu".

    Raises:
        ValueError: Ray gave a GPU that torch does not see. Training on the CPU instead,
            without saying so, would waste the GPU.
    """
    given = ray.get_gpu_ids()
    if not given or are_logical():
        return "cpu"
    if why := why_unseen():
        gpu = ", ".join(map(str, given))
        gave = f"Ray gave GPU {gpu} of {platform.node()} to a client actor"
        raise ValueError(unseen_message(gave, why))
    return "cuda"
