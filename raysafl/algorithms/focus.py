"""FOCUS: exact convergence under any participation, by push and pull (docs/papers.md#focus)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import KnowsLocalTraining
from raysafl.core.algorithm import Round, State, Train, Update
from raysafl.core.randomness import Key


class FOCUS(KnowsLocalTraining):
    """The server follows the sum of the last gradients of all clients.

        y <- y + sum_i(g_i - g_i_before)        over the cohort
        w <- w - lr * y

    Each client of the cohort takes the run's local steps along g - g_i_before, from w, and
    then computes one more gradient, on a mini-batch of its own: its new g_i. All g_i and y
    start at zero, so y is the sum of the g_i of all clients that have participated so far.
    That of a client does not depend on how often it participates.

    A run with K - 1 local steps of plain SGD is the paper's algorithm with tau = K. `lr` is
    the clients' learning rate there too. As y is a sum over N clients, and not a mean, the
    paper's rates are small (0.002 with N = 32).

    Source: Ying et al. 2025, NeurIPS, algorithm 1 (docs/papers.md#focus). The last gradient has the
    weight decay and the clipping of the run's local training, which the paper leaves open.
    """

    remembers_clients: ClassVar[bool] = True
    lr: float | None = Field(
        default=None,
        gt=0,
        description="Server learning rate; None: the clients' learning rate of the round.",
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start with y = 0 and every g_i = 0."""
        return State(w_P, {"y": torch.zeros_like(w_P)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort, ask for its last gradients, and step along their sum."""
        assert self.local, "prepare() fills in the run's local training"
        before_MP = state.recall(ids)
        # A client keeps its model for the next request: nothing is sent up, or down again.
        moved: Update = yield Train(state.w_P, ids, -before_MP, up_bytes=0)
        # A step at the rate 1 is the gradient.
        step = self.local.begun_anew(
            lr=1.0, epochs=None, steps=1, optimizer="sgd", momentum=0.0, schedule=None
        )
        model_MP = state.w_P - moved.delta_MP
        last: Update = yield Train(
            state.w_P, ids, local=step, w_MP=model_MP, extra_down=-1
        )
        y_P = state.server["y"] + (last.delta_MP - before_MP).sum(0)
        lr = self.lr or self.local.rate(key.round)
        return State(
            state.w_P - lr * y_P, {"y": y_P}, state.remember(ids, last.delta_MP)
        )
