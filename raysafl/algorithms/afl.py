"""AFL: anarchic federated learning (docs/papers.md#afl)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class AFL(Algorithm):
    """The server averages the clients' mean steps; clients may start from old models.

        w <- w - lr * mean_i(Delta_i / steps_i)

    The mean is over the cohort, which is the paper's rule AFA-CD. With `memory` it is
    over all N clients, each with the mean step of the last round in which it participated
    (zero if there is none), which is the paper's AFA-CS. Only with `memory` does the server
    keep a vector of P numbers for each client that has participated.

    Each client starts from the model of tau client rounds ago, with tau drawn uniformly
    from 0..max_delay (at most the number of rounds so far) for each client. lr
    applies to one local step: where all clients take equally many steps, AFL with lr
    equal to their number is FedAvg, and with `memory` it is MIFA.

    Source: Yang et al. 2022, ICML (docs/papers.md#afl), rules AFA-CD and AFA-CS.
    """

    remembers_clients: ClassVar[bool] = True
    lr: float = Field(
        default=1.0, gt=0, description="Server learning rate per local step."
    )
    max_delay: int = Field(
        default=0, ge=0, description="Maximum age of a start model, in client rounds."
    )
    memory: bool = Field(
        default=False,
        description="Whether the last mean step of an absent client stands in for it (AFA-CS).",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with an empty list of past models and a mean of zero, where needed."""
        server = dict[str, Tensor]()
        if self.max_delay:
            server["past"] = w_P.new_empty(0, len(w_P))
        if self.memory:
            server["mean"] = torch.zeros_like(w_P)
            # A state holds tensors only, so that it can be stored as a checkpoint.
            server["num_clients"] = torch.tensor(float(num_clients))
        return State(w_P, server)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort from (possibly old) models and average the steps."""
        if not self.max_delay:
            update: Update = yield Train(state.w_P, ids)
        else:
            # Row 0 is the present model, so a delay of 0 starts from it.
            # The suffix _A counts the ages of models: past_AP[a] is a rounds old.
            past_AP = torch.cat([state.w_P[None], state.server["past"]])
            delays = [int(key("delay", i).integers(len(past_AP))) for i in ids]
            update = yield Train(state.w_P, ids, w_MP=past_AP[delays])
            past = {"past": past_AP[: self.max_delay]}
            state = replace(state, server={**state.server, **past})

        step_MP = update.delta_MP / update.steps_M.to(update.delta_MP)[:, None]
        if not self.memory:
            return replace(state, w_P=state.w_P - self.lr * step_MP.mean(0))
        # Only the cohort's rows change, so the mean over all changes by their difference.
        change_P = (step_MP - state.recall(ids)).sum(0) / state.server["num_clients"]
        mean_P = state.server["mean"] + change_P
        return State(
            state.w_P - self.lr * mean_P,
            {**state.server, "mean": mean_P},
            state.remember(ids, step_MP),
        )
