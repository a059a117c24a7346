"""`Work` on Ray actors: each hosts all clients and trains those it is given, as one batch.

One message per actor and round carries its tasks, the start parameters once per replicate and,
where that is faster (`rides`), the last round's evaluation; one reply carries sums or rows. Tasks,
or whole replicates where that is about as even, are placed longest first, which is deterministic;
sums are exact and rows are put back in the order asked, so results do not depend on the number of
actors.
"""

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import ray
import torch
from torch import Tensor

from raysafl.core.problem import FederatedData, Model
from raysafl.core.work import Scores, Task, Trained
from raysafl.runtime.actor_pool import Call, Fleet
from raysafl.runtime.client_actor import Clients
from raysafl.runtime.exact_mean import combine_shares, count_averaged
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.in_process import Worker
from raysafl.runtime.messages import Array, Asked, pack, sent_form, unpack_reply
from raysafl.runtime.placement import place_replicates
from raysafl.training.evaluation import scores_of_sums, span_starts
from raysafl.training.inputs import as_tensor

Setup: TypeAlias = tuple[FederatedData, Any, Model, list[int], str, int]  # of `Clients.configure`
WORTH = 10**5  # samples times parameters; a round of fewer is not worth a second message
TEST_SHARE = 3  # a sample is trained on for the time of so many that are tested


def start_actors(hardware: Hardware) -> Fleet:
    """Client actors with their shares; inside a trial they land in its placement group."""
    return Fleet(Clients, hardware)


def rides(engine: str) -> bool:
    """Whether evaluations of an engine are to go with trainings (see `OnActors`)."""
    return engine == "fused"


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


@dataclass(eq=False)
class _Part:
    """What one actor is to evaluate: with a training, behind its reply, or by a call of its own."""

    number: int
    place: int
    spans: list[int]
    w: list[Tensor]
    cost: int  # in samples trained
    sent: list[Any] = field(default_factory=list)  # the parameters as they went with a training
    call: Call | None = None
    sums: Array = field(default_factory=lambda: np.empty(0))


class OnActors:
    """`Work` on client actors; `reference` is the same in this process.

    Initial parameters and sizes come from the reference, so that they are its own.

    `riding`: send evaluations with trainings. It saves a message, some 2 ms, and is for evaluations
    without large tensors: malloc gives those of the thread that does them back each time.
    """

    def __init__(self, actors: Fleet, reference: Worker, riding: bool = False) -> None:
        self.actors, self.reference, self.riding = actors, reference, riding
        self.init, self.sizes = reference.init, reference.sizes
        self._loads = [0] * len(actors)  # evaluations that each has yet to do, in samples trained
        self._numbers = itertools.count(1)
        self._held: list[_Part] = []  # evaluations that are yet to be sent
        self._riding: dict[int, _Part] = {}  # those sent with a training whose sums are to come
        self._kept: dict[int, tuple[Tensor, Any]] = {}  # by id, as sent a moment ago

    def _samples(self, task: Task) -> int:
        """What a task costs: the samples it will see, about."""
        held = self.reference.splits[task.replicate].size(task.client)
        return task.sgd.num_steps(held) * min(held, task.sgd.batch_size)

    def train(self, tasks: Sequence[Task], averaged: Collection[int] = ()) -> Trained:
        """Carry out the tasks; see `Work.train`."""
        costs = [self._samples(task) for task in tasks]
        work = sum(costs) * self.reference.trainer.model.num_parameters
        loads = self._loads if work > WORTH else self._loads[:1]
        shares = place_replicates([task.replicate for task in tasks], costs, loads)
        self._loads = [0] * len(self.actors)
        self._kept = {}  # an algorithm may have changed them in place since
        counts = count_averaged(tasks, averaged)
        busy = {i: [tasks[at] for at in share] for i, share in enumerate(shares) if share}
        asked = self._send(busy, counts)
        self._send_held()
        replies = []
        for own, parts in zip(busy.values(), self.actors.get(asked), strict=True):
            reply, found = unpack_reply(own, parts, counts)
            replies.append(reply)
            if found and (part := self._riding.pop(found.number, None)):
                part.sums = found.sums
        return combine_shares(tasks, counts, [shares[i] for i in busy], replies)

    def _send(self, busy: Mapping[int, Sequence[Task]], counts: Mapping[int, int]) -> list[Call]:
        """Send each actor its tasks, and what it is to evaluate behind them."""
        riding = {part.place: part for part in self._held if self.riding and part.place in busy}
        tensors = [task.w_P for own in busy.values() for task in own]
        tensors += [w_P for part in riding.values() for w_P in part.w]
        sent, calls = self._sendable({id(w_P): w_P for w_P in tensors}), list[Call]()
        for i, own in busy.items():
            also = Asked(0, (), ())
            if part := riding.get(i):
                self._held.remove(part)
                self._loads[i] += part.cost
                self._riding[part.number] = part
                part.sent = [sent[id(w_P)] for w_P in part.w]
                also = Asked(part.number, part.spans, part.w)
            parts = 2 + len(count_averaged(own, counts))
            calls.append(self.actors.send(i, "train", *pack(own, counts, sent, also), parts=parts))
        return calls

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Test accuracy and loss; spans of the test set are dealt out to the actors.

        They are sent with the next training, or behind it: an actor evaluates while it would else
        wait for the others' training, and for what follows from it.
        """
        count = len(self.actors)
        num_samples = len(self.reference.trainer.test.y)
        starts = span_starts(num_samples)
        dealt = list(filter(None, (starts[i::count] for i in range(count))))
        cost = len(w) * num_samples // len(dealt) // TEST_SHARE
        models = list(w.values())
        mine = [_Part(next(self._numbers), i, s, models, cost) for i, s in enumerate(dealt)]
        self._held += mine

        def scores() -> Scores:
            sums = self._sums(mine)
            spans = [as_tensor(sums[k % count][k // count]) for k in range(len(starts))]
            found = scores_of_sums(spans, num_samples).T.tolist()
            return {r: (accuracy, loss) for r, (accuracy, loss) in zip(w, found, strict=True)}

        return scores

    def _sums(self, parts: Sequence[_Part]) -> list[Array]:
        """The sums [spans, 2, R] of each part; asked for, where they have not come by themselves.

        So it is where an actor has nothing more to train, or was lost.
        """
        # also those made since: no training comes first
        due, self._held = [*parts, *self._held], []
        for part in due:
            self._riding.pop(part.number, None)
            if not part.sums.size and not part.call:
                self._ask(part)
        self._kept = {}
        for part in parts:
            if part.call:
                (part.sums,) = self.actors.get([part.call])
        return [part.sums.reshape(len(part.spans), 2, -1) for part in parts]

    def _ask(self, part: _Part) -> None:
        models = part.sent or self._sendable(dict(enumerate(part.w))).values()
        part.call = self.actors.send(part.place, "evaluate", part.number, part.spans, *models)

    def _send_held(self) -> None:
        """Send the evaluations that did not go with a training."""
        while self._held:
            self._ask(self._held[0])
            part = self._held.pop(0)
            self._loads[part.place] += part.cost
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
        """Parameters as they are sent: large ones go to the store, and once for a training and
        the evaluation of what it starts from.
        """
        kept, self._kept = self._kept, {}
        for w_P in w.values():
            self._kept[id(w_P)] = kept.get(id(w_P)) or (w_P, self._stored(w_P))
        return {name: self._kept[id(w_P)][1] for name, w_P in w.items()}

    def _stored(self, w_P: Tensor) -> Any:
        assert w_P.dtype == torch.float32
        sent = sent_form(w_P.numpy())
        return sent if isinstance(sent, bytes) else ray.put(sent)
