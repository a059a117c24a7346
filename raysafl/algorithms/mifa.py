"""MIFA: memory-augmented impatient averaging (Gu et al., NeurIPS 2021)."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.client_memory import recall, remember
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class MIFA(Algorithm):
    """The absent are stood in for by their last update: w <- w - lr * mean of all rows (Gu 2021).

    row_i = Delta_i of client i's last round (Algorithm 1 of Gu et al.). The paper assumes that all
    clients come in the first round. Where they do not, `over="all"` (the default) counts those
    never seen as zero rows, so the first steps are small; `over="seen"` is the mean of those seen.
    """

    lr: float = Field(default=1.0, gt=0)
    over: Literal["all", "seen"] = "all"

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """No rows; their mean over all clients is zero."""
        return State(
            w_P, {"mean": torch.zeros_like(w_P), "num_clients": torch.tensor(float(num_clients))}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round; the mean of the rows is kept up to date rather than summed anew."""
        update: Update = yield Train(state.w_P, ids)
        delta_MP = update.delta_MP
        num_clients = state.server["num_clients"]
        mean_P = state.server["mean"] + (delta_MP - recall(state, ids)).sum(0) / num_clients
        rows = remember(state, ids, delta_MP)
        scale = num_clients / len(rows) if self.over == "seen" else 1.0
        return State(
            state.w_P - self.lr * scale * mean_P,
            {"mean": mean_P, "num_clients": num_clients},
            rows,
        )
