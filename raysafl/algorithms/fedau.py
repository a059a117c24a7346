"""FedAU: clients are weighted by how rarely they participate (docs/papers.md#fedau)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import (
    Algorithm,
    Round,
    State,
    Train,
    Update,
    index_of,
)
from raysafl.core.randomness import Key


class FedAU(Algorithm):
    """Each update is weighted by an estimate of 1 / (the client's participation probability).

        w <- w - lr / N * sum_i(weight_i Delta_i)

    over the cohort, with N clients in all. weight_i is the mean length of client i's
    participation intervals so far, and 1 before the first of them has ended. An
    interval ends when the client participates, or after K rounds, and then has the length
    K. The interval that ends in this round counts from the next round on. A round without
    participants counts. A round in which no client is asked to train (a server round of
    SAFARI) does not.

    Source: Wang and Ji 2024, ICLR, algorithms 1 and 2 (docs/papers.md#fedau); K = 50 is
    theirs.
    """

    acts_without_clients: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    K: int = Field(
        default=50, gt=0, description="Maximum length of an interval, in rounds."
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with weight 1 for each client.

        The state holds, per client, the weight, the number of intervals that have
        ended, and the number of rounds since the last one ended.
        """
        count_N = torch.zeros(num_clients, dtype=torch.int64)
        weight_N = torch.ones(num_clients, dtype=torch.float64)
        return State(
            w_P, {"weight": weight_N, "ended": count_N, "waited": count_N.clone()}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Apply the weighted updates, then update the estimates of the intervals."""
        cohort_M = index_of(ids)
        weight_N = state.server["weight"]
        waited_N = state.server["waited"] + 1

        # An interval ends for the cohort, and for the clients that waited too long.
        ends_N = waited_N >= self.K
        ends_N[cohort_M] = True
        ended_N = state.server["ended"] + ends_N

        # For a client whose interval ends now: the mean length of all its intervals.
        mean_N = weight_N + (waited_N - weight_N) / ended_N.clamp_min(1)

        w_P = state.w_P
        if ids:
            update: Update = yield Train(w_P, ids)
            # As in the paper, the weights from before this round are applied.
            # The axis of length 1 lets one weight apply to all parameters of a row.
            weight_M1 = weight_N[cohort_M].to(update.delta_MP)[:, None]
            step_P = (weight_M1 * update.delta_MP).sum(0) / len(weight_N)
            w_P = w_P - self.lr * step_P
        server = {
            "weight": torch.where(ends_N, mean_N, weight_N),
            "ended": ended_N,
            "waited": torch.where(ends_N, 0, waited_N),
        }
        return replace(state, w_P=w_P, server=server)
