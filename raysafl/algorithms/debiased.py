"""Debiased FedAvg: updates divided by how often clients participate (docs/papers.md#debiased)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update, index_of
from raysafl.core.randomness import Key


class DebiasedFedAvg(Algorithm):
    """Each update is divided by the share of rounds in which its client has participated.

        w <- w - lr / N * sum_i(Delta_i / share_i)

    over the cohort, with N clients in all. share_i is the number of rounds so far in which
    client i participated, divided by the number of rounds so far, both with this round. A
    round without participants counts. A round in which no client is asked to train (a
    server round of SAFARI) does not.

    Source: Sun et al. 2025, ICLR (docs/papers.md#debiased). The paper has minimum
    separation in mind: a client that has participated may not again for some rounds. Its
    local updates are scaled; here Delta_i is, which is the same for one local step.
    """

    acts_without_clients: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with no round, in which nobody has participated."""
        count_N = torch.zeros(num_clients, dtype=torch.int64)
        return State(w_P, {"rounds": torch.tensor(0), "participated": count_N})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Count this round, and step along the weighted updates."""
        rounds = state.server["rounds"] + 1
        participated_N = state.server["participated"].clone()
        w_P = state.w_P
        if ids:
            update: Update = yield Train(w_P, ids)
            cohort_M = index_of(ids)
            participated_N[cohort_M] += 1
            weight_M = rounds / participated_N[cohort_M]
            weight_M1 = weight_M.to(w_P)[:, None]
            step_P = (weight_M1 * update.delta_MP).sum(0) / len(participated_N)
            w_P = w_P - self.lr * step_P
        return State(w_P, {"rounds": rounds, "participated": participated_N})
