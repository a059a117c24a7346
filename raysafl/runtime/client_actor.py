"""The code of a client actor, which trains and evaluates what the coordinator sends.

An actor hosts all clients of a run, not one of them. In each round it decodes its
`TaskMessage`, trains the tasks and replies. An evaluation that came with the message is
then done by a thread, while the coordinator makes the next round ready; its sums go
with the next reply. The thread and the training never run at the same time, since every
method waits for the evaluation first.
"""

import os
import platform
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import ray
import torch
from torch import Tensor

from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import (
    Array,
    EvaluationSums,
    RunSetup,
    Sent,
    TaskMessage,
    TaskReply,
    array_of,
)
from raysafl.training.inputs import as_tensor

LOGICAL_GPUS = "RAYSAFL_LOGICAL_GPUS"


class Clients:
    """The class of client actors: one model, the shared data and many clients.

    Args:
        threads: Number of threads that torch uses.
    """

    def __init__(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.worker: Worker | None = None
        self._thread = ThreadPoolExecutor(
            1, "evaluation", torch.set_num_threads, (threads,)
        )
        # The number of the evaluation that came with the last training, and its sums.
        self._evaluation: tuple[int, Future[Array]] | None = None

    def configure(self, setup: RunSetup) -> tuple[str, str]:
        """Host the clients of a run; called again when the actor serves another run.

        Returns:
            The device and the engine in use.

        Raises:
            ValueError: The setup does not fit, or Ray gave a GPU that torch does not
                see.
        """
        self._wait_for_evaluation()
        self._evaluation = None
        # Ray replaces a reference by its object only where it is an argument itself.
        dataset = setup.dataset
        frozen = setup.frozen
        if isinstance(dataset, ray.ObjectRef):
            dataset = ray.get(dataset)
        if isinstance(frozen, ray.ObjectRef):
            frozen = ray.get(frozen)
        device = own_device()
        self.worker = Worker(
            setup.data,
            dataset,
            setup.model,
            setup.seeds,
            device,
            setup.engine,
            setup.batch_size,
        )
        self.worker.trainer.model.load_frozen(frozen)
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        return name, self.worker.trainer.engine_name

    def train(self, header: bytes, offset_TP: Sent, *w: Sent) -> tuple[Sent, ...]:
        """Train the tasks of an encoded `TaskMessage`; return an encoded `TaskReply`.

        An evaluation that came with the message begins when the reply is ready.
        """
        assert self.worker is not None
        message = TaskMessage.decode(header, offset_TP, w)
        earlier = self._take_evaluation()
        result = self.worker.train_share(message.tasks, message.counts)
        if request := message.evaluation:
            future = self._thread.submit(self._sums, request.spans, request.w)
            self._evaluation = (request.number, future)
        return TaskReply(result, earlier).encode()

    def evaluate(self, number: int, spans: Sequence[int], *w: Sent) -> Array:
        """Return the sums of an evaluation, see `EvaluationSums`.

        They are not computed again if the evaluation came with the last training.
        """
        if self._evaluation and self._evaluation[0] == number:
            earlier = self._take_evaluation()
            if earlier:
                return earlier.sums
        self._wait_for_evaluation()
        return self._sums(spans, [as_tensor(array_of(w_P)) for w_P in w])

    def count_correct(
        self, ids: dict[int, Sequence[int]], first: int, step: int, *w: Sent
    ) -> list[int]:
        """Count the training samples that each replicate classifies correctly.

        Args:
            ids: For each replicate, the clients whose samples are looked at.
            first: The index of the first sample that is counted.
            step: From there on, every `step`-th sample is counted.
            w: The parameters of each replicate.
        """
        assert self.worker is not None
        self._wait_for_evaluation()
        share = slice(first, None, step)
        return [
            self.worker.count_correct(r, as_tensor(array_of(w_P)), ids[r], share)
            for r, w_P in zip(ids, w, strict=True)
        ]

    def _sums(self, spans: Sequence[int], w: Sequence[Tensor]) -> Array:
        """Evaluate models on spans of the test set: [spans, 2, R]."""
        assert self.worker is not None
        w_RP = torch.stack(list(w))
        span_sums = self.worker.trainer.evaluator.span_sums
        return np.stack([span_sums(w_RP, start).numpy() for start in spans])

    def _wait_for_evaluation(self) -> None:
        """Wait until the evaluation that came with the last training is done."""
        if self._evaluation:
            wait([self._evaluation[1]])

    def _take_evaluation(self) -> EvaluationSums | None:
        """Wait for that evaluation, and return its sums once.

        If it failed, it is left in place and None is returned: the error is raised when
        the coordinator asks for the evaluation by itself.
        """
        self._wait_for_evaluation()
        if self._evaluation is None or self._evaluation[1].exception():
            return None
        number, future = self._evaluation
        self._evaluation = None
        return EvaluationSums(number, future.result())


def own_device() -> str:
    """Return the device of this actor: "cuda" if Ray gave it a GPU, else "cpu".

    Raises:
        ValueError: Ray gave a GPU that torch does not see. Training on the CPU instead,
            without saying so, would waste the GPU.
    """
    given = ray.get_gpu_ids()
    if not given or os.environ.get(LOGICAL_GPUS) == "1":
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(
            f"Ray gave GPU {', '.join(map(str, given))} of {platform.node()} to a "
            f"client actor, but torch {torch.__version__} sees no CUDA device there; "
            "install a driver and a torch that fit each other, or run with --gpus 0 "
            "(or, if the GPUs are only numbers to Ray, as in tests, set "
            f"{LOGICAL_GPUS}=1 on every node to train on the CPU)"
        )
    return "cuda"
