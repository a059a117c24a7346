"""FedVARP: variance reduction for partial participation (docs/papers.md#fedvarp)."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import without_rows
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class FedVARP(Algorithm):
    """The last update of every client reduces the variance of the cohort's mean.

        w <- w - lr * (mean_cohort(Delta_i - y_i) + mean_all(y_i))
        y_i <- Delta_i                               for the clients of the cohort

    y_i is the update of client i's last round, and zero before its first. The second
    mean is over all N clients, with the values before this round. This is SAGA
    (docs/papers.md#saga) over clients.

    Source: Jhunjhunwala et al. 2022, UAI (docs/papers.md#fedvarp).
    """

    remembers_clients: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with every y_i = 0, so that their mean is zero."""
        return without_rows(w_P, num_clients, "mean")

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Apply the variance-reduced mean, then remember the cohort's updates."""
        update: Update = yield Train(state.w_P, ids)
        delta_MP = update.delta_MP
        mean_P = state.server["mean"]
        num_clients = state.server["num_clients"]
        # How much each client's update differs from its last one.
        change_MP = delta_MP - state.recall(ids)
        return State(
            state.w_P - self.lr * (change_MP.mean(0) + mean_P),
            {
                "mean": mean_P + change_MP.sum(0) / num_clients,
                "num_clients": num_clients,
            },
            state.remember(ids, delta_MP),
        )
