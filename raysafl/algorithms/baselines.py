"""What federated learning is measured against: one place with one set of data."""

from collections.abc import Sequence
from dataclasses import replace

from raysafl.core.algorithm import Algorithm, LocalTraining, Round, State, Train, Update
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Key


class ServerOnly(Algorithm):
    """SGD on the server's data D0 alone, whoever comes: SAFARI with q = 0."""

    server_update: LocalTraining = LocalTraining(lr=0.1, batch_size=64, epochs=1)

    @property
    def uses_server_data(self) -> bool:
        """Always."""
        return True

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """The server's update; nobody is asked."""
        update: Update = yield Train.server(state.w_P, self.server_update)
        return replace(state, w_P=state.w_P - update.delta_MP[0])


class Centralised(Algorithm):
    """SGD on the union of all clients' data, absent ones too: what no federation can beat.

    A round is the run's local training (or `sgd`) on the union, so `epochs` are passes over all
    data. Nothing is sent; the record's kind is "central".
    """

    sgd: LocalTraining | None = None

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One update on everyone's data; nobody is asked."""
        update: Update = yield Train(state.w_P, [EVERYONE], sgd=self.sgd)
        return replace(state, w_P=state.w_P - update.delta_MP[0])
