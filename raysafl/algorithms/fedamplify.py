"""FedAmplify: FedAvg with amplified updates (Wang & Ji, NeurIPS 2022)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, MeanUpdate, Round, State, TrainMean
from raysafl.core.randomness import Key


class FedAmplify(Algorithm):
    """FedAvg that every P rounds amplifies its way: w <- w_t0 + eta (w - w_t0) (Wang & Ji 2022).

    w_t0 is the model P client rounds ago. P should span the participation process, so that the
    way of P rounds holds every client; it and eta have no default, as they depend on that process.
    eta = 1 is FedAvg. Inside SAFARI, server rounds are part of the way but not of the count.
    """

    P: int = Field(gt=0)
    eta: float = Field(gt=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """The first P rounds start here."""
        return State(w_P, {"start": w_P.clone(), "count": torch.tensor(0)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        update: MeanUpdate = yield TrainMean(state.w_P, ids)
        w_P = state.w_P - update.delta_P
        start_P, count = state.server["start"], state.server["count"] + 1
        if int(count) == self.P:
            w_P = w_P + (self.eta - 1) * (w_P - start_P)
            start_P, count = w_P.clone(), torch.tensor(0)
        return replace(state, w_P=w_P, server={"start": start_P, "count": count})
