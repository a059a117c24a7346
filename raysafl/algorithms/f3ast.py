"""F3AST: selection by learnt rates, which also weigh the updates (docs/papers.md#f3ast)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import (
    Algorithm,
    CountSamples,
    Round,
    State,
    Train,
    index_of,
)
from raysafl.core.problem import EVERYONE
from raysafl.core.randomness import Key


class F3AST(Algorithm):
    """Those clients are selected that were selected rarely for their share of the samples.

        S   = the m available clients with the largest p_i / r_i, or all if they are fewer
        r_i <- (1 - beta) r_i + beta [i in S]           for each client i
        w   <- w - lr * sum_i(p_i / r_i Delta_i)        over S

    p_i is client i's share of all samples, and r_i the rate at which it is selected. Of equal
    p_i / r_i, the first counts as larger. The rates also change in a round in which nobody is
    available. They start at m p_i, so that the first rounds average the updates; the paper leaves
    this open. They tend to a sum of m, so that the sum over S is unbiased.

    Source: Ribero et al. 2023, IEEE J-STSP (docs/papers.md#f3ast), with plain SGD as the server's
    optimizer. The new r_i in the weights, and beta, are from the authors' program.
    """

    acts_without_clients: ClassVar[bool] = True
    m: int = Field(gt=0, description="Largest number of selected clients.")
    beta: float = Field(default=0.001, gt=0, lt=1, description="Weight of a new round.")
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    divided_by_m: bool = Field(
        default=False,
        description="Whether, as in the authors' program, the sum is divided by m and rates start "
        "at p_i, so that steps become m times as small in the long run.",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with nobody selected; r_i is rate_i plus what has not faded of its start."""
        rate_N = torch.zeros(num_clients, dtype=torch.float64)
        return State(
            w_P, {"rate": rate_N, "faded": torch.ones((), dtype=torch.float64)}
        )

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Select among the available clients, renew the rates, and step along the sum."""
        rate_N = (1 - self.beta) * state.server["rate"]
        faded = (1 - self.beta) * state.server["faded"]
        w_P = state.w_P
        if ids:
            all_1 = yield CountSamples([EVERYONE])
            p_M = (yield CountSamples(ids)).double() / all_1
            start = 1 if self.divided_by_m else self.m
            if len(ids) > self.m:
                # It grows with r_i / p_i, and is equal for all that were never selected.
                often_M = rate_N[index_of(ids)] / p_M + faded * start
                first = often_M.argsort(stable=True)[: self.m].sort().values
                ids = [ids[j] for j in first.tolist()]
                p_M = p_M[first]
            rate_N[index_of(ids)] += self.beta
            update = yield Train(w_P, ids)
            weight_M = 1 / (rate_N[index_of(ids)] / p_M + faded * start)
            step_P = (weight_M.to(w_P)[:, None] * update.delta_MP).sum(0)
            w_P = w_P - self.lr / (self.m if self.divided_by_m else 1) * step_P
        return State(w_P, {"rate": rate_N, "faded": faded})
