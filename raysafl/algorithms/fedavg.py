"""FedAvg, FedProx and FedAvgM (docs/papers.md#fedavg): the mean of the cohort's updates."""

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

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


def mean_update(
    w_P: Tensor, ids: Sequence[int], weighted: bool, prox: float = 0.0
) -> Generator[Request | CountSamples, Any, MeanUpdate]:
    """Let the cohort train, and ask for the mean update, as a part of an algorithm's round.

    Args:
        w_P: [P] where all clients start.
        ids: The cohort.
        weighted: Whether client i weighs its number n_i of training samples.
        prox: Weight of the clients' pull towards w_P.
    """
    weight_M = (yield CountSamples(ids)) if weighted else None
    update: MeanUpdate = yield TrainMean(w_P, ids, prox=prox, weight_M=weight_M)
    return update


class FedAvg(Algorithm):
    """The server subtracts the mean of the cohort's updates.

        w <- w - lr * mean_i(Delta_i)          with Delta_i = w - w_i

    The mean is uniform over the cohort, as in SAFARI (algorithm 1, line 9), where all
    clients hold equally many samples. With `weighted` it is

        mean_i(Delta_i) = sum_i(n_i Delta_i) / sum_i(n_i)

    over the cohort, where client i holds n_i training samples.

    Source: McMahan et al. 2017, AISTATS, algorithm 1 (docs/papers.md#fedavg), whose mean is the
    weighted one.

    Example:
        >>> import raysafl as fl
        >>> fl.FedAvg(lr=0.5).to_json()
        '{"kind":"FedAvg","lr":0.5,"weighted":false}'
    """

    lr: float | None = Field(
        default=1.0,
        gt=0,
        description="Server learning rate; None: the square root of the cohort's size (FSL).",
    )
    weighted: bool = Field(
        default=False,
        description="Whether a client weighs its number of training samples in the "
        "mean; otherwise all clients of the cohort weigh the same.",
    )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort and subtract the mean of its updates."""
        update = yield from mean_update(state.w_P, ids, self.weighted)
        lr = global_rate(self.lr, ids)
        return replace(state, w_P=state.w_P - lr * update.delta_P)


class FedProx(FedAvg):
    """FedAvg whose clients are pulled towards their start: they descend g + mu * (w_i - w).

    The paper's mu is `prox`.

    Source: Li et al. 2020, MLSys (docs/papers.md#fedprox). The default lies in the range over
    which the paper tunes mu.
    """

    prox: float = Field(
        default=0.01, ge=0, description="Weight mu of the proximal term."
    )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the pulled cohort and subtract the mean of its updates."""
        update = yield from mean_update(state.w_P, ids, self.weighted, self.prox)
        lr = global_rate(self.lr, ids)
        return replace(state, w_P=state.w_P - lr * update.delta_P)


class FedAvgM(FedAvg):
    """FedAvg with momentum at the server.

        v <- momentum * v + mean_i(Delta_i)
        w <- w - lr * v

    Source: Hsu et al. 2019, arXiv (docs/papers.md#fedavgm).
    """

    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="Momentum at the server."
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with a momentum of zero."""
        return State(w_P, {"v": torch.zeros_like(w_P)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort and follow the running sum of its mean updates."""
        update = yield from mean_update(state.w_P, ids, self.weighted)
        v_P = self.momentum * state.server["v"] + update.delta_P
        lr = global_rate(self.lr, ids)
        return replace(state, w_P=state.w_P - lr * v_P, server={"v": v_P})
