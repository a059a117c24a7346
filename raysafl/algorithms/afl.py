"""AFL: anarchic federated learning (docs/papers.md#afl)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class AFL(Algorithm):
    """The server averages the clients' mean steps; clients may start from old models.

        w <- w - lr * mean_i(Delta_i / steps_i)

    Each client starts from the model of tau client rounds ago, with tau drawn uniformly
    from 0..max_delay (at most the number of rounds so far) for each client. lr
    applies to one local step: where all clients take equally many steps, AFL with lr
    equal to their number is FedAvg.

    Source: the rule AFA-CD of Yang et al. 2022, ICML (docs/papers.md#afl). The paper's
    AFA-CS, which stores the last update of every client, equals MIFA on updates that
    are divided by their number of steps.
    """

    lr: float = Field(
        default=1.0, gt=0, description="Server learning rate per local step."
    )
    max_delay: int = Field(
        default=0, ge=0, description="Maximum age of a start model, in client rounds."
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with an empty list of past models, if delays are simulated."""
        return State(
            w_P, {"past": w_P.new_empty(0, len(w_P))} if self.max_delay else {}
        )

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
            state = replace(state, server={"past": past_AP[: self.max_delay]})
        mean_P = (update.delta_MP / update.steps_M.to(update.delta_MP)[:, None]).mean(0)
        return replace(state, w_P=state.w_P - self.lr * mean_P)
