"""AFL: anarchic federated learning (Yang et al., ICML 2022)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class AFL(Algorithm):
    """Clients come anyhow, with old models and any steps: w <- w - lr * mean(Delta_i / steps_i).

    The rule AFA-CD of anarchic FL (Yang et al. 2022b). Each client starts from the model of tau
    client rounds ago, tau uniform in 0..max_delay (at most the rounds run), a draw of its own. The
    rate is for one local step: lr = steps is FedAvg where all clients take equally many. The
    paper's AFA-CS, which keeps the last update of every client, is MIFA on such updates.
    """

    lr: float = Field(default=1.0, gt=0)
    max_delay: int = Field(default=0, ge=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """The models before this one, the latest first: none yet."""
        return State(w_P, {"past": w_P.new_empty(0, len(w_P))} if self.max_delay else {})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        if not self.max_delay:
            update: Update = yield Train(state.w_P, ids)
        else:
            past_DP = torch.cat([state.w_P[None], state.server["past"]])
            delays = [int(key("delay", i).integers(len(past_DP))) for i in ids]
            update = yield Train(state.w_P, ids, w_MP=past_DP[delays])
            state = replace(state, server={"past": past_DP[: self.max_delay]})
        mean_P = (update.delta_MP / update.steps_M.to(update.delta_MP)[:, None]).mean(0)
        return replace(state, w_P=state.w_P - self.lr * mean_P)
