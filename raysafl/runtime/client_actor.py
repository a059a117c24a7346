"""The body of a client actor, and how what it is asked and answers travels.

An actor hosts all clients of a run. One message carries a round's tasks, the start parameters once
per replicate, and what is to be evaluated behind the reply; the sums of that evaluation come with
the next reply.
"""

import os
import platform
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import ray
import torch
from torch import Tensor

from raysafl.core.problem import Dataset, FederatedData, Model
from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import (
    Array,
    Found,
    Sent,
    _unpack,
    array_of,
    sent_form,
)
from raysafl.training.inputs import as_tensor

LOGICAL_GPUS = "RAYSAFL_LOGICAL_GPUS"


class Clients:
    """The body of a client actor: one resident model, the shared data, many clients."""

    def __init__(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.worker: Worker | None = None
        self._behind = ThreadPoolExecutor(1, "evaluation", torch.set_num_threads, (threads,))
        self._late: tuple[int, Future[Array]] | None = None  # the evaluation that came last

    def configure(
        self,
        data: FederatedData,
        dataset: Dataset,
        model: Model,
        seeds: list[int],
        engine: str,
        batch_size: int = 32,
    ) -> tuple[str, str]:
        """Host the clients of a run; called again when the actor is reused for another one.

        Returns the device and the engine in use.
        """
        self._done()
        self._late = None
        device = own_device()
        self.worker = Worker(data, dataset, model, seeds, device, engine, batch_size)
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        return name, self.worker.trainer.engine_name

    def train(self, message: bytes, offsets: Sent, *w: Sent) -> tuple[Sent, ...]:
        """Train the tasks that `pack` packed; the parts of a reply, for `unpack_reply`.

        An evaluation that is asked for begins when the reply is ready, and is done before
        anything else is: it runs while the coordinator goes on to the next round.
        """
        assert self.worker is not None
        tasks, counts, asked = _unpack(message, offsets, w)
        found = self._found()
        result = self.worker.train_share(tasks, counts)
        if asked.spans:
            self._late = asked.number, self._behind.submit(self._sums, asked.spans, asked.w)
        late = [found.number, *found.sums.ravel()] if found else []
        columns = np.append(result.columns_5T, late)
        return tuple(map(sent_form, (columns, result.rows_TP, *result.means)))

    def evaluate(self, number: int, spans: Sequence[int], *w: Sent) -> Array:
        """An evaluation's sums; if it came with the last training, they are not made again."""
        if self._late and self._late[0] == number and (found := self._found()):
            return found.sums
        self._done()
        return self._sums(spans, [as_tensor(array_of(w_P)) for w_P in w])

    def correct(self, ids: dict[int, Sequence[int]], part: int, parts: int, *w: Sent) -> list[int]:
        """How many of the clients' samples, every `parts`-th, each replicate gets right."""
        assert self.worker is not None
        self._done()
        share = slice(part, None, parts)
        return [
            self.worker.count_correct(r, as_tensor(array_of(w_P)), ids[r], share)
            for r, w_P in zip(ids, w, strict=True)
        ]

    def _sums(self, spans: Sequence[int], w: Sequence[Tensor]) -> Array:
        assert self.worker is not None
        w_RP, sums = torch.stack(list(w)), self.worker.trainer.evaluator.span_sums
        return np.stack([sums(w_RP, start).numpy() for start in spans])

    def _done(self) -> None:
        """Wait for the evaluation that came with the last training."""
        if self._late:
            wait([self._late[1]])

    def _found(self) -> Found | None:
        """What it came to, once; one that failed is left to whoever asks for it."""
        self._done()
        if self._late is None or self._late[1].exception():
            return None
        late, self._late = self._late, None
        return Found(late[0], late[1].result())


def own_device() -> str:
    """The device of this actor: "cuda" if Ray gave it a GPU, else "cpu".

    Raises:
        ValueError: Ray gave a GPU that torch does not see. A silent fallback would waste it.
    """
    given = ray.get_gpu_ids()
    if not given or os.environ.get(LOGICAL_GPUS) == "1":
        return "cpu"
    if not torch.cuda.is_available():
        raise ValueError(
            f"Ray gave GPU {', '.join(map(str, given))} of {platform.node()} to a client actor, "
            f"but torch {torch.__version__} sees no CUDA device there; install a driver and a "
            f"torch that fit each other, or run with --gpus 0 (or, if the GPUs are only numbers "
            f"to Ray, as in tests, set {LOGICAL_GPUS}=1 on every node to train on the CPU)"
        )
    return "cuda"
