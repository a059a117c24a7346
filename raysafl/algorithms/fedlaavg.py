"""FedLaAvg: federated latest averaging (docs/papers.md#fedlaavg)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import KnowsLocalTraining, without_rows
from raysafl.core.algorithm import Round, State, Train, Update, index_of
from raysafl.core.randomness import Key


class FedLaAvg(KnowsLocalTraining):
    """The server follows the mean of the latest sums of gradients of all clients.

        g_i <- Delta_i / eta                    for each selected client i
        w   <- w - lr * eta * mean_i(g_i)       over all N clients

    where eta is the clients' learning rate of the round, and g_i is zero for a client that has not
    participated yet. Of the available clients, those K are selected that have not participated for
    the longest time, the first of several. The server steps in a round in which nobody is
    available, too. With K=None and a constant eta, it is `MIFA`.

    Source: Yan et al. 2020, arXiv, algorithm 1 (docs/papers.md#fedlaavg).
    """

    remembers_clients: ClassVar[bool] = True
    acts_without_clients: ClassVar[bool] = True
    K: int | None = Field(
        default=None,
        gt=0,
        description="Number of selected clients; None: all of the available.",
    )
    lr: float = Field(
        default=1.0, gt=0, description="Server learning rate, a factor of the clients'."
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with every g_i = 0, and nobody who has participated."""
        server = without_rows(w_P, num_clients, "mean").server
        return State(w_P, {**server, "last": torch.full((num_clients,), -1)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Let the selected clients renew their sums, and step along the mean of all."""
        assert self.local, "prepare() fills in the run's local training"
        eta = self.local.rate(key.round)
        server = {**state.server, "last": state.server["last"].clone()}
        if self.K is not None and len(ids) > self.K:
            longest = server["last"][index_of(ids)].argsort(stable=True)[: self.K]
            ids = sorted(ids[j] for j in longest.tolist())
        clients = state.clients
        if ids:
            update: Update = yield Train(state.w_P, ids)
            sum_MP = update.delta_MP / eta
            change_P = (sum_MP - state.recall(ids)).sum(0)
            server["mean"] = server["mean"] + change_P / server["num_clients"]
            server["last"][index_of(ids)] = key.round
            clients = state.remember(ids, sum_MP)
        return State(state.w_P - self.lr * eta * server["mean"], server, clients)
