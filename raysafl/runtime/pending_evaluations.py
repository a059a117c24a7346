"""Evaluations that client actors have not answered yet.

The test set is divided among the actors; what one actor evaluates for one call of
`OnActors.evaluate` is an `EvaluationPart`. With `piggyback`, a part is sent together
with the actor's next training and its sums come with the reply to the training after
that, so that no extra message is needed. A part travels by a call of its own if
piggybacking is off, if its actor gets no tasks in the next round, or if its sums are
asked for earlier.
"""

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from raysafl.runtime.actor_pool import ActorPool, Call
from raysafl.runtime.messages import (
    Array,
    EvaluationRequest,
    EvaluationSums,
    SentParameters,
)


@dataclass(eq=False)
class EvaluationPart:
    """What one actor is to evaluate.

    Args:
        actor: The actor's index.
        request: The models and the spans of the test set.
        cost: The time that it takes; the unit is the time of training on one sample.
        sent: The models as they were sent with a training; empty before.
        call: The call of its own, if there was one.
        sums: The flat sums; empty until they have come.
    """

    actor: int
    request: EvaluationRequest
    cost: int
    sent: Sequence[Any] = ()
    call: Call | None = None
    sums: Array = field(default_factory=lambda: np.empty(0))


class PendingEvaluations:
    """The parts that are waiting to be sent, and those whose sums have not come.

    Args:
        actors: The actors.
        parameters: The form in which parameters are sent.
        piggyback: Whether parts are sent together with trainings.
    """

    def __init__(
        self, actors: ActorPool, parameters: SentParameters, piggyback: bool
    ) -> None:
        self.actors = actors
        self.parameters = parameters
        self.piggyback = piggyback
        self._numbers = itertools.count(1)
        self._loads = [0] * len(actors)
        self._waiting: list[EvaluationPart] = []
        # By number of the request: the parts that were sent with a training.
        self._piggybacked: dict[int, EvaluationPart] = {}

    def add(
        self, actor: int, spans: Sequence[int], w: Sequence[Tensor], cost: int
    ) -> EvaluationPart:
        """Let a part wait to be sent."""
        request = EvaluationRequest(next(self._numbers), spans, w)
        part = EvaluationPart(actor, request, cost)
        self._waiting.append(part)
        return part

    def take_loads(self) -> list[int]:
        """Return the cost of what each actor was sent to evaluate since the last call."""
        loads = self._loads
        self._loads = [0] * len(self.actors)
        return loads

    def take_piggybacked(self, actors: Container[int]) -> dict[int, EvaluationPart]:
        """Return, by actor, the parts to be sent with the trainings of these actors."""
        if not self.piggyback:
            return {}
        parts = {part.actor: part for part in self._waiting if part.actor in actors}
        for part in parts.values():
            self._waiting.remove(part)
            self._loads[part.actor] += part.cost
            self._piggybacked[part.request.number] = part
        return parts

    def receive(self, evaluation: EvaluationSums | None) -> None:
        """Note sums that came with a reply, unless they were asked for meanwhile."""
        if evaluation and (part := self._piggybacked.pop(evaluation.number, None)):
            part.sums = evaluation.sums

    def send_waiting(self) -> None:
        """Send the parts that did not go with a training, each by a call of its own."""
        while self._waiting:
            # If a call fails, the part is still waiting and will be sent again.
            self._send(self._waiting[0])
            part = self._waiting.pop(0)
            self._loads[part.actor] += part.cost

    def sums(self, parts: Sequence[EvaluationPart]) -> list[Array]:
        """Return the sums [spans, 2, R] of each part, asking for those still missing.

        Sums are missing if no training followed, or if the actor was lost.
        """
        # Parts that were added later are sent too: no training comes before they are
        # needed.
        due = [*parts, *self._waiting]
        self._waiting = []
        for part in due:
            self._piggybacked.pop(part.request.number, None)
            if not part.sums.size and not part.call:
                self._send(part)
        self.parameters.forget()

        for part in parts:
            if part.call:
                (part.sums,) = self.actors.get([part.call])
        return [part.sums.reshape(len(part.request.spans), 2, -1) for part in parts]

    def _send(self, part: EvaluationPart) -> None:
        request = part.request
        models = part.sent or self.parameters.of(request.w)
        part.call = self.actors.send(
            part.actor, "evaluate", request.number, request.spans, *models
        )
