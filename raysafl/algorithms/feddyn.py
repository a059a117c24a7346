"""FedDyn: federated learning with dynamic regularisation (docs/papers.md#feddyn)."""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import without_rows
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class FedDyn(Algorithm):
    """Each client's loss gets a linear term, so that the local optima come to agree.

    Clients descend along g - h_i + alpha (w_i - w). Where that is zero,
    grad f_i(w_i) = h_i + alpha Delta_i, so h_i is an estimate of the client's gradient:

        h_i <- h_i + alpha Delta_i                   for the clients of the cohort
        h   <- h + alpha sum_i(Delta_i) / N          the mean of h_i over all N clients
        w   <- w - mean_i(Delta_i) - h / alpha

    h_i stays with the client, so it moves no bytes. It is made of the update that the client
    computed, and h of those that arrive; they differ under `Compressed`.

    Source: Acar et al. 2021, ICLR, algorithm 1 (docs/papers.md#feddyn). They tune alpha
    over 0.1, 0.01 and 0.001; the default 0.01 is that of FSL's comparison
    (docs/papers.md#fsl).
    """

    remembers_clients: ClassVar[bool] = True
    alpha: float = Field(
        default=0.01, gt=0, description="Weight of the regularisation."
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with h = 0 and every h_i = 0."""
        return without_rows(w_P, num_clients, "h")

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort with its offsets, then update h, the h_i and the model."""
        # Clients that participate for the first time have h_i = 0.
        h_MP = state.recall(ids)
        update: Update = yield Train(state.w_P, ids, -h_MP, prox=self.alpha)
        delta_MP = update.delta_MP
        num_clients = state.server["num_clients"]
        h_P = state.server["h"] + self.alpha * delta_MP.sum(0) / num_clients
        return State(
            state.w_P - delta_MP.mean(0) - h_P / self.alpha,
            {"h": h_P, "num_clients": num_clients},
            state.remember(ids, h_MP + self.alpha * update.own_MP),
        )
