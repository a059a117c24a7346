"""SCAFFOLD: stochastic controlled averaging (docs/papers.md#scaffold)."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import without_rows
from raysafl.algorithms.fedavg import global_rate
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class SCAFFOLD(Algorithm):
    """Control variates correct the drift of the clients: they descend along g + c - c_i.

        c_i <- c_i - c + Delta_i / (sum of the local learning rates)
        c   <- c + sum_i(change of c_i) / N          over the cohort, N clients in all
        w   <- w - lr * mean_i(Delta_i)

    c_i becomes the client's mean gradient of this round (option II). All c start at
    zero. SCAFFOLD moves twice the bytes of FedAvg: c goes down with w, and the change
    of c_i goes up with Delta_i. It is made of the update that the client computed,
    also where another one arrives (`Compressed`).

    Source: Karimireddy et al. 2020, ICML, algorithm 1 (docs/papers.md#scaffold).
    """

    remembers_clients: ClassVar[bool] = True
    lr: float | None = Field(
        default=1.0,
        gt=0,
        description="Server learning rate; None: the square root of the cohort's size, as in "
        "FSL's comparison.",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with c = 0 and every c_i = 0."""
        return without_rows(w_P, num_clients, "c")

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort with control variates, then update them and the model."""
        c_P = state.server["c"]
        num_clients = state.server["num_clients"]
        own_MP = state.recall(ids)
        update: Update = yield Train(
            state.w_P, ids, c_P - own_MP, extra_up=1, extra_down=1
        )
        # With g = Delta / (sum of rates): the new c_i is g - c + c_i, so it changes by g - c.
        change_MP = (update.own_MP / update.rate_M.to(c_P)[:, None]).sub_(c_P)
        return State(
            state.w_P - global_rate(self.lr, ids) * update.delta_MP.mean(0),
            {"c": c_P + change_MP.sum(0) / num_clients, "num_clients": num_clients},
            # In place, as these rows are the largest thing in memory.
            state.remember(ids, own_MP.add_(change_MP)),
        )
