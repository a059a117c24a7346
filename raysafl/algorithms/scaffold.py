"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.client_memory import recall, remember
from raysafl.algorithms.fedavg import global_rate
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class SCAFFOLD(Algorithm):
    """Clients descend g + c - c_i, which takes their drift away (Karimireddy et al. 2020).

    Algorithm 1 with option II: c_i <- c_i - c + Delta_i / (sum of local rates), the client's mean
    gradient; c <- c + sum(change of c_i) / M;  w <- w - lr * mean(Delta). All c start at zero.
    Twice FedAvg's bytes: c goes down with w, the change of c_i comes up with Delta_i. FSL's
    comparison has eta_g = sqrt(S): `lr=None`.
    """

    kind: ClassVar[str] = "Scaffold"
    lr: float | None = Field(default=1.0, gt=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """c = 0, and every c_i."""
        return State(
            w_P, {"c": torch.zeros_like(w_P), "num_clients": torch.tensor(float(num_clients))}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        c_P, num_clients = state.server["c"], state.server["num_clients"]
        own_MP = recall(state, ids)
        update: Update = yield Train(state.w_P, ids, c_P - own_MP, extra_up=1, extra_down=1)
        change_MP = update.delta_MP / update.rate_M.to(c_P)[:, None] - c_P
        return State(
            state.w_P - global_rate(self.lr, ids) * update.delta_MP.mean(0),
            {"c": c_P + change_MP.sum(0) / num_clients, "num_clients": num_clients},
            remember(state, ids, own_MP + change_MP),
        )
