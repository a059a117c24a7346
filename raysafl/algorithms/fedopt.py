"""FedOpt: adaptive optimizers at the server (docs/papers.md#fedopt)."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.fedavg import mean_update
from raysafl.core.algorithm import Algorithm, Round, State
from raysafl.core.randomness import Key


class FedOpt(Algorithm):
    """The base of FedAdagrad, FedAdam and FedYogi, which differ in the second moment v.

        d = mean_i(Delta_i)
        m <- beta1 m + (1 - beta1) d
        w <- w - lr * m / (sqrt(v) + tau)

    d points like a gradient, so w moves against it; the paper's Delta_t is -d. v starts
    at tau^2, the least that the paper's algorithm 2 allows. There is no bias
    correction. The mean is uniform over the cohort; with `weighted` it is that of
    `FedAvg(weighted=True)`.

    Source: Reddi et al. 2021, ICLR, algorithm 2 (docs/papers.md#fedopt). beta1 = 0.9,
    beta2 = 0.99 and tau = 1e-3 are theirs; they tune the learning rate for each task.
    """

    abstract: ClassVar[bool] = True
    lr: float = Field(default=0.01, gt=0, description="Server learning rate.")
    beta1: float = Field(
        default=0.9, ge=0, lt=1, description="Decay of the first moment."
    )
    tau: float = Field(
        default=1e-3, gt=0, description="Added to sqrt(v); bounds the step."
    )
    weighted: bool = Field(
        default=False,
        description="Whether a client weighs its number of training samples in the "
        "mean; otherwise all clients of the cohort weigh the same.",
    )

    @abstractmethod
    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """Return the next second moment from the last one and the mean update d."""

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with m = 0 and v = tau^2."""
        return State(
            w_P, {"m": torch.zeros_like(w_P), "v": torch.full_like(w_P, self.tau**2)}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Average the updates and take one step of the adaptive optimizer."""
        update = yield from mean_update(state.w_P, ids, self.weighted)
        d_P = update.delta_P
        m_P = self.beta1 * state.server["m"] + (1 - self.beta1) * d_P
        v_P = self.second(state.server["v"], d_P)
        w_P = state.w_P - self.lr * m_P / (v_P.sqrt() + self.tau)
        return replace(state, w_P=w_P, server={"m": m_P, "v": v_P})


class FedAdagrad(FedOpt):
    """FedAvg with Adagrad at the server: v <- v + d^2.

    beta1 is 0 by default, so that m is the mean update itself.

    Source: Reddi et al. 2021, ICLR (docs/papers.md#fedopt).
    """

    beta1: float = Field(
        default=0.0, ge=0, lt=1, description="Decay of the first moment."
    )

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """Return v + d^2, the sum of squares so far."""
        return v_P + d_P**2


class FedAdam(FedOpt):
    """FedAvg with Adam at the server: v <- beta2 v + (1 - beta2) d^2.

    Source: Reddi et al. 2021, ICLR (docs/papers.md#fedopt).
    """

    beta2: float = Field(
        default=0.99, ge=0, lt=1, description="Decay of the second moment."
    )

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """Return the running mean of squares, beta2 v + (1 - beta2) d^2."""
        return self.beta2 * v_P + (1 - self.beta2) * d_P**2


class FedYogi(FedAdam):
    """FedAvg with Yogi at the server: v <- v - (1 - beta2) d^2 sign(v - d^2).

    Source: Reddi et al. 2021, ICLR (docs/papers.md#fedopt).
    """

    def second(self, v_P: Tensor, d_P: Tensor) -> Tensor:
        """Move v towards d^2 by (1 - beta2) d^2, however far apart they are."""
        return v_P - (1 - self.beta2) * d_P**2 * (v_P - d_P**2).sign()
