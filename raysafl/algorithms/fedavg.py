"""FedAvg (docs/papers.md#fedavg), with FedProx and FedAvgM as special cases."""

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import (
    Algorithm,
    CountSamples,
    MeanUpdate,
    Request,
    Round,
    State,
    TrainMean,
)
from raysafl.core.randomness import Key


def global_rate(lr: float | None, ids: Sequence[int]) -> float:
    """Return the server learning rate: `lr`, or for None the square root of the cohort's size.

    The square root is the eta_g of FSL (docs/papers.md#fsl).
    """
    return float(len(ids) ** 0.5) if lr is None else lr


def sample_weights(
    ids: Sequence[int], weighted: bool
) -> Generator[Request | CountSamples, Tensor, Tensor | None]:
    """Ask for the weights of a mean over the cohort, as a part of an algorithm's round.

    Args:
        ids: The cohort.
        weighted: Whether client i weighs its number n_i of training samples.

    Returns:
        [M] the numbers of samples; None if all clients weigh the same.
    """
    return (yield CountSamples(ids)) if weighted else None


class FedAvg(Algorithm):
    """The server subtracts the mean of the cohort's updates.

        v <- momentum * v + mean_i(Delta_i)          with Delta_i = w - w_i
        w <- w - lr * v

    Clients descend along g + prox * (w_i - w). With momentum = prox = 0 this is FedAvg;
    prox > 0 is FedProx, and momentum > 0 is FedAvgM.

    The mean is uniform over the cohort, as in SAFARI (algorithm 1, line 9), where all
    clients hold equally many samples. With `weighted` it is

        mean_i(Delta_i) = sum_i(n_i Delta_i) / sum_i(n_i)

    over the cohort, where client i holds n_i training samples.

    Source: McMahan et al. 2017, algorithm 1, whose mean is the weighted one
    (docs/papers.md#fedavg).

    Example:
        >>> import raysafl as fl
        >>> fl.FedAvg(lr=0.5, momentum=0.9).to_json()
        '{"kind":"FedAvg","lr":0.5,"momentum":0.9,"prox":0.0,"weighted":false}'
    """

    lr: float | None = Field(
        default=1.0,
        gt=0,
        description="Server learning rate; None: the square root of the cohort's size (FSL).",
    )
    momentum: float = Field(
        default=0.0, ge=0, lt=1, description="Momentum at the server."
    )
    prox: float = Field(
        default=0.0, ge=0, description="Weight of the clients' proximal term."
    )
    weighted: bool = Field(
        default=False,
        description="Whether a client weighs its number of training samples in the "
        "mean; otherwise all clients of the cohort weigh the same.",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with a momentum of zero, if there is any."""
        return State(w_P, {"v": torch.zeros_like(w_P)} if self.momentum else {})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort and subtract the mean of its updates."""
        weight_M = yield from sample_weights(ids, self.weighted)
        update: MeanUpdate = yield TrainMean(
            state.w_P, ids, prox=self.prox, weight_M=weight_M
        )
        lr = global_rate(self.lr, ids)
        v_P = update.delta_P
        if not self.momentum:
            return replace(state, w_P=state.w_P - lr * v_P)
        v_P = self.momentum * state.server["v"] + v_P
        return replace(state, w_P=state.w_P - lr * v_P, server={"v": v_P})


class FedProx(FedAvg):
    """FedAvg whose clients are pulled towards their start: they descend g + mu * (w_i - w).

    The paper's mu is `prox`.

    Source: Li et al. 2020 (docs/papers.md#fedprox). The default lies in the range over
    which the paper tunes mu.
    """

    prox: float = Field(
        default=0.01, ge=0, description="Weight mu of the proximal term."
    )


class FedAvgM(FedAvg):
    """FedAvg with momentum at the server.

    Source: Hsu et al. 2019 (docs/papers.md#fedavgm).
    """

    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="Momentum at the server."
    )
