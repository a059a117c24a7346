"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021)."""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.client_memory import recall, remember
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class FedDyn(Algorithm):
    """Each client's loss is tilted until the local optima agree (Acar et al. 2021, Algorithm 1).

    Clients descend g - h_i + alpha (w_i - w). At its zero grad f_i(w_i) = h_i + alpha Delta_i:
    h_i <- h_i + alpha Delta_i is the client's last gradient. The server keeps
    h <- h + alpha sum(Delta) / M, the mean of all h_i, and w <- w - mean(Delta) - h / alpha.

    h_i stays with the client and moves no bytes (FSL: "additional client storage"). alpha = 0.01
    is FSL's; the FedDyn paper tunes it over 0.1, 0.01, 0.001.
    """

    alpha: float = Field(default=0.01, gt=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """h = 0, and every h_i."""
        return State(
            w_P, {"h": torch.zeros_like(w_P), "num_clients": torch.tensor(float(num_clients))}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        h_MP = recall(state, ids)
        update: Update = yield Train(state.w_P, ids, -h_MP, prox=self.alpha)
        delta_MP = update.delta_MP
        num_clients = state.server["num_clients"]
        h_P = state.server["h"] + self.alpha * delta_MP.sum(0) / num_clients
        return State(
            state.w_P - delta_MP.mean(0) - h_P / self.alpha,
            {"h": h_P, "num_clients": num_clients},
            remember(state, ids, h_MP + self.alpha * delta_MP),
        )
