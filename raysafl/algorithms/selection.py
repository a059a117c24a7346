"""Selection among the available clients, for any algorithm."""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor

from raysafl.algorithms.bases import Around, KnowsLocalTraining
from raysafl.core.algorithm import (
    AskLosses,
    CountSamples,
    Request,
    Round,
    State,
    index_of,
)
from raysafl.core.component import Component
from raysafl.core.randomness import Key

Memory: TypeAlias = Mapping[str, Tensor]
"""What a selection remembers, as named tensors."""
Losses: TypeAlias = Callable[
    [Sequence[int], int | None], Generator[Request, Any, Tensor]
]
"""A part of a round that asks clients for their losses; see `KnowsLocalTraining.losses`."""
Choice: TypeAlias = Generator[Request | CountSamples, Any, list[int]]
"""A part of a round: yields requests, is sent answers, and returns the selected clients."""
# What the names of a selection's tensors begin with in the state of the server.
MARK = "~"


class Told(NamedTuple):
    """What is known of M clients after they have trained; see `Update`."""

    ids_M: Tensor
    loss_M: Tensor
    samples_M: Tensor
    round: int


class Selection(Component):
    """How a method selects m of the clients that are available in a round.

    Define `select`, and for a selection that remembers something `init` and `learn`.

    Example:
        >>> class Largest(Selection):
        ...     def select(self, ids, memory, key, losses):
        ...         samples_M = yield CountSamples(ids)
        ...         chosen = samples_M.argsort(descending=True, stable=True)[: self.m]
        ...         return sorted(ids[j] for j in chosen)
        >>> Largest(m=2).m
        2
    """

    abstract: ClassVar[bool] = True
    m: int = Field(
        gt=0,
        description="Number of selected clients, or all of the available if fewer.",
    )

    def init(self, num_clients: int) -> Memory:
        """Return what is remembered before round 0."""
        return {}

    @abstractmethod
    def select(
        self, ids: Sequence[int], memory: Memory, key: Key, losses: Losses
    ) -> Choice:
        """Return the m selected clients in ascending order, as a part of a round.

        It is not called if at most m clients are available.

        Args:
            ids: The available clients, in ascending order.
            memory: What is remembered.
            key: The source of randomness for this seed and round.
            losses: `yield from losses(ids, batches)` gives the losses of the global model.
        """

    def learn(self, memory: Memory, told: Told) -> Memory:
        """Return what is remembered after clients have trained."""
        return memory


class PowerOfChoice(Selection):
    """Of d random candidates, the m clients with the largest loss are selected.

    The candidates are drawn among the available clients without replacement, with probabilities
    proportional to their numbers of samples; where none has samples, nobody is selected. The loss
    of a candidate is that of the global model on all of its samples (the paper's pow-d), on one
    mini-batch (cpow-d), or the mean loss of its last local training (rpow-d), infinite for a client
    that has not trained yet. Of equal losses, the one drawn first counts as larger. In pow-d and
    cpow-d, the selected clients are sent the model twice.

    Source: Cho et al. 2022, AISTATS (docs/papers.md#power-of-choice).

    Raises:
        ValueError: d is below m.
    """

    d: int = Field(gt=0, description="Number of candidates, at least m.")
    loss: Literal["all", "batch", "last"] = Field(
        default="all",
        description='The loss: on "all" samples, on one "batch", or of the "last" training.',
    )

    @model_validator(mode="after")
    def _has_a_choice(self) -> Self:
        if self.d < self.m:
            raise ValueError(
                f"d={self.d} candidates are too few to select m={self.m} clients from; "
                "give a d of at least m"
            )
        return self

    def init(self, num_clients: int) -> Memory:
        """Start with infinite losses."""
        return {"loss": torch.full((num_clients,), torch.inf, dtype=torch.float64)}

    def select(
        self, ids: Sequence[int], memory: Memory, key: Key, losses: Losses
    ) -> Choice:
        """Draw the candidates, and select those with the largest losses."""
        samples_M: Tensor = yield CountSamples(ids)
        if not samples_M.any():
            return []
        chance_M = (samples_M / samples_M.sum(dtype=torch.float64)).numpy()
        size = min(self.d, int(samples_M.count_nonzero()))
        drawn = key("candidates").choice(ids, size, replace=False, p=chance_M).tolist()
        if self.loss == "last":
            loss_M = memory["loss"][drawn]
        else:
            loss_M = yield from losses(drawn, 1 if self.loss == "batch" else None)
        largest = loss_M.argsort(descending=True, stable=True)[: self.m]
        return sorted(drawn[j] for j in largest.tolist())

    def learn(self, memory: Memory, told: Told) -> Memory:
        """Remember the losses."""
        return {"loss": memory["loss"].index_put((told.ids_M,), told.loss_M.double())}


class Selected(Around, KnowsLocalTraining):
    """An algorithm whose server selects among the available clients.

    The participation policy decides who is available, which is the same for all algorithms with
    the same seed; `by` selects among them; `inner` has the selected clients as its cohort. In the
    results, a cohort is the available clients. With `SAFARI`, put `Selected` inside: around it,
    clients would be selected for the server's rounds as well. With `FSL`, put it around: inside,
    the S of FSL would be the number of available clients.

    Raises:
        ValueError: The inner algorithm selects as well.
    """

    by: SerializeAsAny[Selection] = Field(
        description="How clients are selected, such as PowerOfChoice(m=5, d=10)."
    )

    @model_validator(mode="after")
    def _selects_once(self) -> Self:
        if any(isinstance(part, Selected) for part in self.inner.components()):
            raise ValueError(
                "clients that were selected cannot be selected again; take an inner "
                "algorithm without Selected"
            )
        return self

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Return the initial state of the inner algorithm, and of the selection."""
        return _marked(self.inner.init(w_P, num_clients), self.by.init(num_clients))

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Select clients, and run the inner round with them."""
        items = state.server.items()
        memory: Memory = {k[1:]: own for k, own in items if k.startswith(MARK)}
        if len(ids) > self.by.m:
            losses = partial(self.losses, state.w_P)
            ids = yield from self.by.select(ids, memory, key, losses)
        inner_round = self.inner.turn(state, ids, key)
        answer: Any = None
        while True:
            try:
                request = inner_round.send(answer)
            except StopIteration as end:
                return _marked(end.value, memory)
            answer = yield request
            if not isinstance(request, CountSamples | AskLosses):
                ids_M = index_of(request.ids)
                # The server's own training is not a client's.
                own = ids_M >= 0
                told = Told(
                    ids_M[own], answer.loss_M[own], answer.samples_M[own], key.round
                )
                memory = self.by.learn(memory, told)


def _marked(state: State, memory: Memory) -> State:
    """Return a state of the inner algorithm with what a selection remembers."""
    marked = {MARK + name: value for name, value in memory.items()}
    return replace(state, server={**state.server, **marked})
