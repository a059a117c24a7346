"""FedAU: averaging with unknown participation statistics (Wang & Ji, ICLR 2024)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class FedAU(Algorithm):
    """Clients weigh what they are away: w <- w - lr/M * sum(weight_i Delta_i) (Wang & Ji 2024).

    weight_i estimates 1 / (probability to come): the mean of client i's participation intervals
    so far, 1 before the first has ended. An interval ends when the client comes, or after K rounds
    (then it counts K). As in Algorithms 1 and 2, this round's interval counts from the next
    round on. K = 50 is the paper's. A round in which no client is asked (SAFARI) is not counted.
    """

    lr: float = Field(default=1.0, gt=0)
    K: int = Field(default=50, gt=0)

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Per client: its weight, how many intervals have ended, rounds since the last did."""
        count_N = torch.zeros(num_clients, dtype=torch.int64)
        weight_N = torch.ones(num_clients, dtype=torch.float64)
        return State(w_P, {"weight": weight_N, "ended": count_N, "waited": count_N.clone()})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One client round."""
        update: Update = yield Train(state.w_P, ids)
        delta_MP = update.delta_MP
        at, weight_N = torch.tensor(ids), state.server["weight"]
        waited_N = state.server["waited"] + 1
        ends_N = waited_N >= self.K
        ends_N[at] = True
        ended_N = state.server["ended"] + ends_N
        mean_N = weight_N + (waited_N - weight_N) / ended_N.clamp_min(1)
        step_P = (weight_N[at].to(delta_MP)[:, None] * delta_MP).sum(0) / len(weight_N)
        server = {
            "weight": torch.where(ends_N, mean_N, weight_N),
            "ended": ended_N,
            "waited": torch.where(ends_N, 0, waited_N),
        }
        return replace(state, w_P=state.w_P - self.lr * step_P, server=server)
