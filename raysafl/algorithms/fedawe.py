"""FedAWE: clients that were away go on from their own models (docs/papers.md#fedawe)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update, index_of
from raysafl.core.randomness import Key


class FedAWE(Algorithm):
    """The update of a client counts once for each round since its last participation.

        x_i <- mean_j(x_j) - lr * mean_j(age_j Delta_j)      for each client i of the cohort

    with both means over the cohort. Client j trains from its own model x_j, the one with
    which its last participation ended, and Delta_j is its update. age_j is the number of
    rounds since then, this one included, and counts from the start of the run for a client
    that has not participated yet. A round in which no client is asked to train (a server
    round of SAFARI) does not count. Clients outside the cohort keep their models.

    The run's model is the mean of the models of all clients, as in the paper's theorem and
    in the authors' evaluation. No client trains from it, so training by the server
    (`SAFARI`, `FSL`) moves the run's model and never a client's.

    Source: Xiang et al. 2024, NeurIPS, algorithm 1 (docs/papers.md#fedawe).
    """

    remembers_clients: ClassVar[bool] = True
    acts_without_clients: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        description="Largest L2 norm of mean_j(age_j Delta_j); None, as in the paper: no limit. "
        "The authors' code has 0.5.",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Let each client start from w_P, one round before the first."""
        age_N = torch.ones(num_clients, dtype=torch.int64)
        return State(w_P, {"start": w_P.clone(), "age": age_N})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort from its own models, and give it a common one."""
        start_P = state.server["start"]
        age_N = state.server["age"]
        next_age_N = age_N + 1
        if not ids:
            return replace(state, server={"start": start_P, "age": next_age_N})

        # A client's vector is its model minus the start, which is zero at first.
        model_MP = start_P + state.recall(ids)
        update: Update = yield Train(state.w_P, ids, w_MP=model_MP)
        cohort_M = index_of(ids)
        next_age_N[cohort_M] = 1
        age_M1 = age_N[cohort_M].to(model_MP)[:, None]
        step_P = (age_M1 * update.delta_MP).mean(0)
        if self.clip_norm is not None:
            norm = step_P.square().sum().sqrt()
            step_P = step_P * (self.clip_norm / norm).clamp_max(1.0)
        model_P = model_MP.mean(0) - self.lr * step_P

        change_MP = model_P - model_MP
        return State(
            state.w_P + change_MP.sum(0) / len(age_N),
            {"start": start_P, "age": next_age_N},
            state.remember(ids, (model_P - start_P).expand_as(change_MP)),
        )
