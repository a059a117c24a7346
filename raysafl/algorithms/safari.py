"""SAFARI: client rounds and server rounds, at random (docs/papers.md#safari)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from pydantic import Field, SerializeAsAny

from raysafl.algorithms.bases import Around
from raysafl.core.algorithm import LocalTraining, Round, Setting, State, Train, Update
from raysafl.core.randomness import Key


class SAFARI(Around):
    """A round is a client round of `inner` by chance; else the server trains on D0.

    `client_prob`, the paper's q, is the probability of a client round. A server round
    moves no bytes. client_prob = 1 is `inner`
    itself, and client_prob = 0 is `ServerOnly`.

    By default the server trains as the clients do, with their rate and their batch
    size, in five passes over D0. In the paper's experiments five clients make one pass
    each in a round, and a server round takes the place of all of them.

    Source: Yang et al. 2024, ICML, algorithm 1 (docs/papers.md#safari). It prints one SGD step
    for a server round (`steps=1`), with which the printed accuracies cannot be reached; with
    one pass and with five they can (docs/reproduction.md).

    Example:
        >>> import raysafl as fl
        >>> server = fl.LocalTraining(lr=0.05, batch_size=16, epochs=2)
        >>> fl.SAFARI(inner=fl.FedAvg(), client_prob=0.6, server_update=server).uses_server_data
        True
    """

    client_prob: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="Probability of a client round (the paper's q).",
    )
    server_update: SerializeAsAny[LocalTraining] | None = Field(
        default=None,
        description="How the server trains in a server round; None: as the clients do, in "
        "five passes over D0.",
    )

    @property
    def uses_server_data(self) -> bool:
        """Return whether there are server rounds, or `inner` trains on D0."""
        return self.client_prob < 1 or self.inner.uses_server_data

    def prepare(self, setting: Setting) -> Self:
        """Return this algorithm, prepared, with the server's training filled in."""
        server = self.server_update or five_passes(setting.local)
        return super().prepare(setting).replace(server_update=server)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Run a client round with probability `client_prob`, else a server round."""
        # The draw depends on seed and round alone, so all algorithms see the same rounds.
        if key("safari").random() < self.client_prob:
            return (yield from self.inner.turn(state, ids, key))
        assert self.server_update, "prepare() fills in what depends on the run"
        update: Update = yield Train.server(state.w_P, self.server_update)
        return replace(state, w_P=state.w_P - update.delta_MP[0])


def five_passes(clients: LocalTraining) -> LocalTraining:
    """Return the server's training by default: that of the clients, in five passes."""
    # The server keeps no optimizer, nor its place in D0, as `ContinuedTraining` does.
    return clients.begun_anew(epochs=5, steps=None)
