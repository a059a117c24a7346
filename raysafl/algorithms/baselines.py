"""Baselines without federation: training on the server's data, or on all data at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from pydantic import Field, SerializeAsAny

from raysafl.algorithms.safari import five_passes
from raysafl.core.algorithm import (
    Algorithm,
    LocalTraining,
    Round,
    Setting,
    State,
    Train,
    Update,
)
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Key


class ServerOnly(Algorithm):
    """Only the server trains, on its data D0, whichever clients participate.

    This is SAFARI with client_prob = 0 (docs/papers.md#safari).
    """

    acts_without_clients: ClassVar[bool] = True
    server_update: SerializeAsAny[LocalTraining] | None = Field(
        default=None,
        description="How the server trains in one round; None: as the clients do, in five "
        "passes over D0.",
    )

    @property
    def uses_server_data(self) -> bool:
        """Return True: every round trains on D0."""
        return True

    def prepare(self, setting: Setting) -> "ServerOnly":
        """Return this algorithm with the server's training filled in."""
        server = self.server_update or five_passes(setting.local)
        return self.replace(server_update=server)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the server; no client is asked."""
        assert self.server_update, "prepare() fills in what depends on the run"
        update: Update = yield Train.server(state.w_P, self.server_update)
        return replace(state, w_P=state.w_P - update.delta_MP[0])


class Centralised(Algorithm):
    """Training in one place on all clients' data, also of clients that never participate.

    It shows what could be reached without federation. One round is the run's local
    training on the union of the data, so `epochs` are passes over all data. Nothing is
    sent, and the rows have the kind "central".
    """

    acts_without_clients: ClassVar[bool] = True
    local: SerializeAsAny[LocalTraining] | None = Field(
        default=None,
        description="How a round trains; None: as the run's `local` says.",
    )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train on the union of all data; no client is asked."""
        # EVERYONE stands for the union of all clients' data.
        update: Update = yield Train(state.w_P, [EVERYONE], local=self.local)
        return replace(state, w_P=state.w_P - update.delta_MP[0])
