"""FedVARP: variance reduction for partial participation (Jhunjhunwala et al., UAI 2022)."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.client_memory import recall, remember
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class FedVARP(Algorithm):
    """SAGA over clients: v = mean(Delta_i - y_i) + mean of all y;  w <- w - lr * v (FedVARP, 2022).

    y_i = Delta_i of client i's last round, zero before its first (Jhunjhunwala et al.). The
    first mean is over the cohort, the second over all M clients, before this round.
    """

    lr: float = Field(default=1.0, gt=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """No rows; their mean over all clients is zero."""
        return State(
            w_P, {"mean": torch.zeros_like(w_P), "num_clients": torch.tensor(float(num_clients))}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        update: Update = yield Train(state.w_P, ids)
        delta_MP = update.delta_MP
        mean_P, num_clients = state.server["mean"], state.server["num_clients"]
        change_MP = delta_MP - recall(state, ids)
        return State(
            state.w_P - self.lr * (change_MP.mean(0) + mean_P),
            {"mean": mean_P + change_MP.sum(0) / num_clients, "num_clients": num_clients},
            remember(state, ids, delta_MP),
        )
