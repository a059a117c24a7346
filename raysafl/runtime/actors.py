"""`Work` on Ray actors: each hosts all clients and trains those it is given, as one batch.

One message per actor and round carries its tasks and the start parameters once per replicate;
one reply carries the rows. Tasks are placed longest first, which is deterministic, and rows are
put back in the order asked, so results do not depend on the number of actors.
"""

import heapq
import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core import Dataset, FederatedData, Model, Task, Update
from raysafl.runtime.fleet import Fleet
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.worker import Worker

Array = NDArray[Any]
LOGICAL_GPUS = "RAYSAFL_LOGICAL_GPUS"


class Clients:
    """The body of a client actor: one resident model, the shared data, many clients."""

    def __init__(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.worker: Worker | None = None

    def configure(
        self, data: FederatedData, dataset: Dataset, model: Model, seeds: list[int], engine: str
    ) -> tuple[str, str]:
        """Host the clients of a run; called again when the actor is reused for another one.

        Returns the device and the engine in use.
        """
        device = own_device()
        self.worker = Worker(data, dataset, model, seeds, device, engine)
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        return name, self.worker.trainer.engine_name

    def train(self, starts: list[Array], tasks: list[tuple[int, Task]]) -> list[Array]:
        """Train tasks, each from the start parameters of its index."""
        assert self.worker is not None
        w = [torch.from_numpy(start.copy()) for start in starts]
        update = self.worker.train([task._replace(w_P=w[start]) for start, task in tasks])
        return [row.numpy() for row in update]

    def evaluate(self, w: dict[int, Array]) -> dict[int, tuple[float, float]]:
        """Test accuracy and loss of some replicates."""
        assert self.worker is not None
        return self.worker.evaluate({r: torch.from_numpy(w_P.copy()) for r, w_P in w.items()})


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


def start_actors(hardware: Hardware) -> Fleet:
    """Client actors with their shares; inside a trial they land in its placement group."""
    return Fleet(Clients, hardware)


def place(costs: Sequence[int], actors: int) -> list[list[int]]:
    """Longest first onto the least loaded actor; ties by number. Each share in rising order."""
    heap = [(0, actor) for actor in range(actors)]
    shares: list[list[int]] = [[] for _ in range(actors)]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, actor = heapq.heappop(heap)
        shares[actor].append(i)
        heapq.heappush(heap, (load + costs[i], actor))
    return [sorted(share) for share in shares]


class OnActors:
    """`Work` on client actors; `reference` is the same in this process.

    Initial parameters and sizes come from the reference, so that they are its own.
    """

    def __init__(self, actors: Fleet, reference: Worker) -> None:
        self.actors, self.reference = actors, reference
        self.init, self.sizes = reference.init, reference.sizes

    def _samples(self, task: Task) -> int:
        """What a task costs: the samples it will see."""
        held = len(self.reference.splits[task.replicate].of(task.client))
        return task.sgd.num_steps(held) * task.sgd.batch_size

    def train(self, tasks: Sequence[Task]) -> Update:
        """Train all tasks; rows in the order given."""
        shares = place([self._samples(task) for task in tasks], len(self.actors))
        waiting = [
            self.actors.send(place, "train", *_pack([tasks[i] for i in share]))
            for place, share in enumerate(shares)
            if share
        ]
        replies: list[list[Array]] = self.actors.get(waiting)
        back = torch.tensor([i for share in shares for i in share]).argsort()
        columns = zip(*replies, strict=True)
        return Update(
            *(torch.cat([torch.from_numpy(part.copy()) for part in c])[back] for c in columns)
        )

    def evaluate(self, w: Mapping[int, Tensor]) -> dict[int, tuple[float, float]]:
        """Test accuracy and loss; replicates are dealt out to the actors."""
        arrays = [(r, w_P.numpy()) for r, w_P in w.items()]
        shares = [dict(arrays[i :: len(self.actors)]) for i in range(len(self.actors))]
        waiting = [
            self.actors.send(place, "evaluate", share)
            for place, share in enumerate(shares)
            if share
        ]
        replies: list[dict[int, tuple[float, float]]] = self.actors.get(waiting)
        scores = {r: score for reply in replies for r, score in reply.items()}
        return {r: scores[r] for r in w}


def _pack(tasks: list[Task]) -> tuple[list[Array], list[tuple[int, Task]]]:
    """Tasks without their start parameters, which go along once each."""
    index: dict[int, int] = {}
    starts: list[Array] = []
    packed = []
    for task in tasks:
        at = index.setdefault(id(task.w_P), len(starts))
        if at == len(starts):
            starts.append(task.w_P.numpy())
        packed.append((at, task._replace(w_P=torch.empty(0))))
    return starts, packed
