"""FedAvg (McMahan et al. 2017), with FedProx and FedAvgM as arguments of it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, MeanUpdate, Round, State, TrainMean
from raysafl.core.randomness import Key


def global_rate(lr: float | None, ids: Sequence[int]) -> float:
    """eta_g: a number, or None for the square root of the cohort's size, as in FSL."""
    return float(len(ids) ** 0.5) if lr is None else lr


class FedAvg(Algorithm):
    """The mean of the cohort's updates: w <- w - lr * mean(Delta_i) (McMahan et al. 2017).

    v <- momentum * v + mean(Delta);  w <- w - lr * v, with Delta_i = w - w_i. momentum > 0 is
    FedAvgM (Hsu et al. 2019); prox = mu > 0 is FedProx (Li et al. 2020), whose clients descend
    g + mu * (w_i - w). The mean is uniform over the cohort, as in SAFARI (Algorithm 1, line 9):
    all clients hold equally many samples there. `lr=None` is the square root of the cohort's
    size, FSL's eta_g.
    """

    lr: float | None = Field(default=1.0, gt=0)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    prox: float = Field(default=0.0, ge=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """No memory beyond the momentum."""
        return State(w_P, {"v": torch.zeros_like(w_P)} if self.momentum else {})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        update: MeanUpdate = yield TrainMean(state.w_P, ids, prox=self.prox)
        lr = global_rate(self.lr, ids)
        v_P = update.delta_P
        if not self.momentum:
            return replace(state, w_P=state.w_P - lr * v_P)
        v_P = self.momentum * state.server["v"] + v_P
        return replace(state, w_P=state.w_P - lr * v_P, server={"v": v_P})


class FedProx(FedAvg):
    """FedAvg whose clients are pulled to their start: g + mu * (w_i - w) (Li et al. 2020).

    `mu` is another name of `prox`. The default is in the range that the paper tunes over.
    """

    prox: float = Field(default=0.01, ge=0)

    def __init__(self, /, **fields: Any) -> None:
        if "mu" in fields:
            fields.setdefault("prox", fields.pop("mu"))
        super().__init__(**fields)


class FedAvgM(FedAvg):
    """FedAvg with momentum at the server (Hsu et al. 2019)."""

    momentum: float = Field(default=0.9, ge=0, lt=1)
