"""SAFARI (Yang et al., ICML 2024): client rounds and server rounds, at random."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field, SerializeAsAny
from torch import Tensor

from raysafl.algorithms.fedavg import FedAvg
from raysafl.core.algorithm import Algorithm, LocalTraining, Round, Setting, State, Train, Update
from raysafl.core.randomness import Key


class SAFARI(Algorithm):
    """With probability q a client round of `inner`; else the server trains on D0 (SAFARI).

    Algorithm 1 prints one SGD step for a server round (`steps=1`); K steps and whole epochs are
    other readings. With a single step the printed accuracies cannot be reached (docs/log.md), so
    the default is one epoch over D0. Batch size: that of the clients (64), open in the paper.

    q = 1 is `inner`; q = 0 is SGD on the server's data alone. A server round moves no bytes.
    """

    kind: ClassVar[str] = "Safari"
    inner: SerializeAsAny[Algorithm] = Field(default_factory=FedAvg)
    client_prob: float = Field(default=0.8, ge=0, le=1, alias="q")
    server_update: LocalTraining = LocalTraining(lr=0.1, batch_size=64, epochs=1)

    @property
    def uses_server_data(self) -> bool:
        """Not in the limit q = 1, unless `inner` does."""
        return self.client_prob < 1 or self.inner.uses_server_data

    def prepare(self, setting: Setting) -> "SAFARI":
        """With the inner algorithm prepared."""
        return self.replace(inner=self.inner.prepare(setting))

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """The inner algorithm's state."""
        return self.inner.init(w_P, num_clients)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """A client round with probability q, else a server round."""
        if key("safari").random() < self.client_prob:
            return (yield from self.inner.round(state, ids, key))
        update: Update = yield Train.server(state.w_P, self.server_update)
        return replace(state, w_P=state.w_P - update.delta_MP[0])
