"""SAFARI: client rounds and server rounds, at random (docs/papers.md#safari)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field, SerializeAsAny
from torch import Tensor

from raysafl.algorithms.fedavg import FedAvg
from raysafl.core.algorithm import (
    Algorithm,
    LocalTraining,
    Round,
    Setting,
    State,
    Train,
    Update,
)
from raysafl.core.randomness import Key


class SAFARI(Algorithm):
    """A round is a client round of `inner` by chance; else the server trains on D0.

    `client_prob`, the paper's q, is the probability of a client round. A server round
    moves no bytes. client_prob = 1 is `inner`
    itself, and client_prob = 0 is `ServerOnly`.

    Source: SAFARI, algorithm 1 (docs/papers.md#safari). It prints one SGD step for a
    server round (`steps=1`), with which the printed accuracies cannot be reached
    (docs/log.md). So the default is one epoch over D0. The paper leaves the server's
    batch size open; the default is that of the clients, 64.

    Example:
        >>> import raysafl as fl
        >>> server = fl.LocalTraining(lr=0.05, batch_size=16, epochs=2)
        >>> fl.SAFARI(inner=fl.FedAvg(), client_prob=0.6, server_update=server).uses_server_data
        True
    """

    acts_without_clients: ClassVar[bool] = True
    inner: SerializeAsAny[Algorithm] = Field(
        default_factory=FedAvg, description="The algorithm of the client rounds."
    )
    client_prob: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Probability of a client round (the paper's q).",
    )
    server_update: LocalTraining = Field(
        default=LocalTraining(lr=0.1, batch_size=64, epochs=1),
        description="How the server trains in a server round.",
    )

    @property
    def uses_server_data(self) -> bool:
        """Return whether there are server rounds, or `inner` trains on D0."""
        return self.client_prob < 1 or self.inner.uses_server_data

    def prepare(self, setting: Setting) -> "SAFARI":
        """Return this algorithm with its inner algorithm prepared."""
        return self.replace(inner=self.inner.prepare(setting))

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Return the initial state of the inner algorithm."""
        return self.inner.init(w_P, num_clients)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Run a client round with probability `client_prob`, else a server round."""
        # The draw depends on seed and round alone, so all algorithms see the same rounds.
        if key("safari").random() < self.client_prob:
            return (yield from self.inner.turn(state, ids, key))
        update: Update = yield Train.server(state.w_P, self.server_update)
        return replace(state, w_P=state.w_P - update.delta_MP[0])
