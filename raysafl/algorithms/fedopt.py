"""FedOpt: adaptive rates at the server (Reddi et al., ICLR 2021, Algorithm 2)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, MeanUpdate, Round, State, TrainMean
from raysafl.core.randomness import Key


class FedOpt(Algorithm):
    """m <- beta1 m + (1 - beta1) d;  w <- w - lr * m / (sqrt(v) + tau), with d = mean(Delta).

    d points like a gradient, so w moves against it (the paper's Delta_t is -d). The second moment
    v starts at tau^2, the least that Algorithm 2 allows; there is no bias correction. beta1 = 0.9,
    beta2 = 0.99, tau = 1e-3 are the paper's; the rate is tuned per task there.
    """

    abstract: ClassVar[bool] = True
    lr: float = Field(default=0.01, gt=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    tau: float = Field(default=1e-3, gt=0)

    @abstractmethod
    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """The next second moment."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """m = 0, v = tau^2."""
        return State(w_P, {"m": torch.zeros_like(w_P), "v": torch.full_like(w_P, self.tau**2)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        update: MeanUpdate = yield TrainMean(state.w_P, ids)
        d_P = update.delta_P
        m_P = self.beta1 * state.server["m"] + (1 - self.beta1) * d_P
        v_P = self.second(state.server["v"], d_P)
        w_P = state.w_P - self.lr * m_P / (v_P.sqrt() + self.tau)
        return replace(state, w_P=w_P, server={"m": m_P, "v": v_P})


class FedAdagrad(FedOpt):
    """FedAvg with Adagrad at the server: v <- v + d^2 (Reddi et al. 2021)."""

    beta1: float = Field(default=0.0, ge=0, lt=1)

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """The sum of squares."""
        return v_P + d_P**2


class FedAdam(FedOpt):
    """FedAvg with Adam at the server: v <- beta2 v + (1 - beta2) d^2 (Reddi et al. 2021)."""

    beta2: float = Field(default=0.99, ge=0, lt=1)

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """The running mean of squares."""
        return self.beta2 * v_P + (1 - self.beta2) * d_P**2


class FedYogi(FedAdam):
    """FedAvg with Yogi at the server: v <- v - (1 - beta2) d^2 sign(v - d^2) (Reddi 2021)."""

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """Moves by at most (1 - beta2) d^2, however large v is."""
        return v_P - (1 - self.beta2) * d_P**2 * (v_P - d_P**2).sign()
