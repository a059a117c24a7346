"""`Work` on Ray actors: each hosts all clients and trains those it is given, as one batch.

One message per actor and round carries its tasks and the start parameters once per replicate;
one reply carries sums or rows. Tasks, or whole replicates where that is about as even, are placed
longest first, which is deterministic; sums are exact and rows are put back in the order asked, so
results do not depend on the number of actors.
"""

import heapq
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core import Dataset, FederatedData, Model, Scores, Task, Update
from raysafl.local import as_tensor
from raysafl.runtime.fleet import Call, Fleet
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.sums import Reply, averaged, combine
from raysafl.runtime.worker import Worker

Array = NDArray[Any]
Sent: TypeAlias = Array | bytes
Setup: TypeAlias = tuple[FederatedData, Any, Model, list[int], str, int]  # of `Clients.configure`
LARGE = 100_000  # bytes that Ray does not send inside a message
WORTH = 10**5  # samples times parameters; a round of fewer is not worth a second message
EVEN = 1.1  # times the time of the evenest placement: what whole replicates may cost
TEST_SHARE = 3  # a sample is trained on for the time of so many that are tested
LOGICAL_GPUS = "RAYSAFL_LOGICAL_GPUS"


class Clients:
    """The body of a client actor: one resident model, the shared data, many clients."""

    def __init__(self, threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self.worker: Worker | None = None

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
        device = own_device()
        self.worker = Worker(data, dataset, model, seeds, device, engine, batch_size)
        name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        return name, self.worker.trainer.engine_name

    def train(self, message: bytes, offsets: Sent, *starts: Sent) -> tuple[Sent, ...]:
        """Train the tasks that `_pack` packed; a `Reply`, each of whose arrays is a part."""
        assert self.worker is not None
        columns_5T, delta_KP, means_GP = self.worker.reply(*_unpack(message, offsets, starts))
        return tuple(map(_sent, (columns_5T, delta_KP, *means_GP)))

    def evaluate(self, spans: list[int], *w: Sent) -> list[Array]:
        """Sums [2, R] over some spans of the test set, of R models (see `LocalTrainer.sums`)."""
        assert self.worker is not None
        w_RP = torch.stack([as_tensor(_array(w_P)) for w_P in w])
        return [self.worker.trainer.sums(w_RP, start).numpy() for start in spans]

    def correct(self, ids: dict[int, Sequence[int]], part: int, parts: int, *w: Sent) -> list[int]:
        """How many of the clients' samples, every `parts`-th, each replicate gets right."""
        assert self.worker is not None
        share = slice(part, None, parts)
        return [
            self.worker.correct(r, as_tensor(_array(w_P)), ids[r], share)
            for r, w_P in zip(ids, w, strict=True)
        ]


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


def settled(actors: Fleet, setup: Setup) -> tuple[str, str]:
    """Wait until all actors are ready; their device and engine.

    One engine trains a run: where other machines chose another one than the first actor, or an
    actor is replaced later, theirs is the first's.
    """
    found = actors.ready()
    device, engine = found[0]
    told = (*setup[:4], engine, setup[5])
    if any(other != engine for _, other in found):
        actors.configure(*told)
        actors.ready()
    actors.expect(*told)
    return device, engine


def place(costs: Sequence[int], loads: Sequence[int]) -> list[list[int]]:
    """Longest first onto the least loaded actor; ties by number. Each share in rising order.

    `loads` is what each actor has to do before.
    """
    heap = [(load, actor) for actor, load in enumerate(loads)]
    heapq.heapify(heap)
    shares: list[list[int]] = [[] for _ in loads]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, actor = heapq.heappop(heap)
        shares[actor].append(i)
        heapq.heappush(heap, (load + costs[i], actor))
    return [sorted(share) for share in shares]


def place_replicates(
    replicates: Sequence[int], costs: Sequence[int], loads: Sequence[int]
) -> list[list[int]]:
    """Tasks of one replicate together if that is about as even as `place`.

    Then a replicate's parameters and sums travel once.
    """
    members: dict[int, list[int]] = {}
    for i, replicate in enumerate(replicates):
        members.setdefault(replicate, []).append(i)
    groups = list(members.values())
    whole = place([sum(costs[i] for i in group) for group in groups], loads)
    together = [sorted(i for g in share for i in groups[g]) for share in whole]
    apart = place(costs, loads)

    def longest(shares: list[list[int]]) -> int:
        return max(
            load + sum(costs[i] for i in share) for load, share in zip(loads, shares, strict=True)
        )

    return together if longest(together) <= EVEN * longest(apart) else apart


class OnActors:
    """`Work` on client actors; `reference` is the same in this process.

    Initial parameters and sizes come from the reference, so that they are its own.
    """

    def __init__(self, actors: Fleet, reference: Worker) -> None:
        self.actors, self.reference = actors, reference
        self.init, self.sizes = reference.init, reference.sizes
        self._loads = [0] * len(actors)  # evaluations that each has yet to do, in samples trained
        self._held: list[Callable[[], None]] = []  # evaluations that are yet to be sent
        self._kept: dict[int, tuple[Tensor, Any]] = {}  # by id, as sent a moment ago

    def _samples(self, task: Task) -> int:
        """What a task costs: the samples it will see, about."""
        held = self.reference.splits[task.replicate].size(task.client)
        return task.sgd.num_steps(held) * min(held, task.sgd.batch_size)

    def train(self, tasks: Sequence[Task]) -> Update:
        """Train all tasks; rows in the order given, means where tasks ask for them."""
        costs = [self._samples(task) for task in tasks]
        work = sum(costs) * self.reference.trainer.model.size
        loads = self._loads if work > WORTH else self._loads[:1]
        shares = place_replicates([task.replicate for task in tasks], costs, loads)
        self._loads = [0] * len(self.actors)
        self._kept = {}  # an algorithm may have changed them in place since
        starts = self._sendable({id(task.w_P): task.w_P for task in tasks})
        asked, counts = list[Call](), averaged(tasks)
        busy = {i: [tasks[at] for at in share] for i, share in enumerate(shares) if share}
        for i, own in busy.items():
            message, parts = _pack(own, starts, counts), 2 + len(averaged(own))
            asked.append(self.actors.send(i, "train", *message, parts=parts))
        self._send_held()
        replies = zip(busy.values(), self.actors.get(asked), strict=True)
        return combine(
            tasks, [shares[i] for i in busy], [_reply(*reply, counts) for reply in replies]
        )

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Test accuracy and loss; spans of the test set are dealt out to the actors.

        They are sent behind the next training: an actor evaluates while it would else wait for
        the others' training, and for what follows from it.
        """
        trainer, count, asked = self.reference.trainer, len(self.actors), list[Call]()

        def send() -> None:
            arrays = self._sendable(w).values()
            shares = filter(None, (trainer.spans[i::count] for i in range(count)))
            calls = [self.actors.send(i, "evaluate", s, *arrays) for i, s in enumerate(shares)]
            asked.extend(calls)
            for i in range(len(asked)):
                self._loads[i] += len(w) * trainer.test.y.numel() // len(asked) // TEST_SHARE

        self._held.append(send)

        def scores() -> Scores:
            self._send_held()
            replies = self.actors.get(asked)
            spans = [as_tensor(replies[k % count][k // count]) for k in range(len(trainer.spans))]
            found = trainer.mean(spans).T.tolist()
            return {r: (accuracy, loss) for r, (accuracy, loss) in zip(w, found, strict=True)}

        return scores

    def _send_held(self) -> None:
        while self._held:
            self._held[0]()
            self._held.pop(0)
        self._kept = {}

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Training accuracies; every actor counts a share of the samples."""
        arrays, parts = self._sendable({r: w[r] for r in ids}), len(self.actors)
        asked = [
            self.actors.send(k, "correct", dict(ids), k, parts, *arrays.values())
            for k in range(parts)
        ]
        correct = map(sum, zip(*self.actors.get(asked), strict=True))
        return {r: n / self.reference.samples(r, ids[r]) for r, n in zip(ids, correct, strict=True)}

    def _sendable(self, w: Mapping[int, Tensor]) -> dict[int, Any]:
        """Parameters as they are sent: large ones for several actors go to the store, and once
        for a training and the evaluation of what it starts from.
        """
        kept, self._kept = self._kept, {}
        for w_P in w.values():
            self._kept[id(w_P)] = kept.get(id(w_P)) or (w_P, self._stored(w_P))
        return {name: self._kept[id(w_P)][1] for name, w_P in w.items()}

    def _stored(self, w_P: Tensor) -> Any:
        assert w_P.dtype == torch.float32
        sent = _sent(w_P.numpy())
        return sent if isinstance(sent, bytes) or len(self.actors) == 1 else ray.put(sent)


def _sent(array: Array) -> Sent:
    """A small array as its bytes, which Ray sends in a third of the time."""
    return array if array.nbytes > LARGE else array.tobytes()


def _array(sent: Sent, kind: type = np.float32) -> Array:
    """The array that was sent, in one dimension; `kind` is what bytes are."""
    return np.frombuffer(sent, kind) if isinstance(sent, bytes) else sent.reshape(-1)


def _pack(
    tasks: Sequence[Task], starts: Mapping[int, Any], counts: Mapping[int, int]
) -> tuple[Any, ...]:
    """The arguments of `Clients.train`: tasks and counts, offsets, and each start once."""
    used = dict.fromkeys(id(task.w_P) for task in tasks)
    at = {name: k for k, name in enumerate(used)}
    bare = [
        (*task[:2], at[id(task.w_P)], *task[3:7], task[7] is not None, *task[8:]) for task in tasks
    ]
    offsets = [task.offset_P.numpy() for task in tasks if task.offset_P is not None]
    offset_KP = _sent(np.stack(offsets)) if offsets else b""
    return ray.cloudpickle.dumps((bare, counts)), offset_KP, *(starts[name] for name in used)


def _unpack(
    message: bytes, offset_KP: Sent, starts: Sequence[Sent]
) -> tuple[list[Task], Mapping[int, int]]:
    """The tasks that were packed, and the counts."""
    w = [as_tensor(_array(start)) for start in starts]
    offsets = iter(as_tensor(_array(offset_KP).reshape(-1, len(w[0]))))
    bare, counts = ray.cloudpickle.loads(message)
    tasks = [Task(*fields) for fields in bare]
    return [
        task._replace(w_P=w[task.w_P], offset_P=next(offsets) if task.offset_P else None)
        for task in tasks
    ], counts


def _reply(tasks: Sequence[Task], parts: Sequence[Sent], counts: Mapping[int, int]) -> Reply:
    """The reply to a share of the tasks, from its parts."""
    (columns, delta, *means), size = parts, tasks[0].w_P.numel()
    kinds = [np.float32 if n == counts[r] else np.float64 for r, n in averaged(tasks).items()]
    return Reply(
        _array(columns, np.float64).reshape(5, -1),
        _array(delta).reshape(-1, size),
        [_array(mean, kind) for mean, kind in zip(means, kinds, strict=True)],
    )
