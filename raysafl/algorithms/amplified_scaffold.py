"""Amplified SCAFFOLD: control variates over periods (docs/papers.md#amplified-scaffold)."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Round, State, Train, Update, index_of
from raysafl.core.randomness import Key


class AmplifiedSCAFFOLD(Algorithm):
    """SCAFFOLD whose control variates and whose progress are renewed every P rounds.

    Within a period, clients descend along g - c_i + c and w <- w - mean_i(Delta_i). At the
    end of each P rounds in which somebody participated,

        w   <- w_start + gamma (w - w_start)
        c_i <- mean of client i's gradients g of all its local steps in the period
        c   <- mean_i(c_i)                                    over all N clients

    where w_start is the model at the start of the period. A client that did not participate
    in the period keeps its c_i. All c start at zero. P should be so large that every
    client participates within P rounds. P and gamma depend on that process and so have no
    default.

    The traffic is that of SCAFFOLD: c goes down with w, and the sum of gradients goes up
    with Delta_i. The state holds 2 N vectors [P] whatever the participation.

    Source: Crawshaw and Liu 2024, NeurIPS, algorithm 1 (docs/papers.md#amplified-scaffold).
    A client that did not participate keeps its c_i as in the authors' code.
    """

    remembers_clients: ClassVar[bool] = True
    P: int = Field(gt=0, description="Rounds of a period.")
    gamma: float = Field(gt=0, description="Factor of the amplification.")

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Begin a period with every c_i = 0."""
        zero_NP = torch.zeros(num_clients, len(w_P))
        server = {
            "start": w_P.clone(),
            "rounds": torch.tensor(0),
            "c": zero_NP,
            "gradients": zero_NP.clone(),
            "steps": torch.zeros(num_clients),
        }
        return State(w_P, server)

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Train the cohort with control variates, and end the period if it is due."""
        before = state.server
        cohort_M = index_of(ids)
        c_NP = before["c"]
        offset_MP = c_NP.mean(0) - c_NP[cohort_M]
        update: Update = yield Train(
            state.w_P, ids, offset_MP, extra_up=1, extra_down=1
        )
        # Delta = rate * mean(g + offset) with the sum of the learning rates as the rate.
        rate_M1 = update.rate_M.to(state.w_P)[:, None]
        steps_M1 = update.steps_M.to(state.w_P)[:, None]
        gradient_MP = update.own_MP / rate_M1 - offset_MP
        gradients_NP = before["gradients"].clone()
        gradients_NP[cohort_M] += steps_M1 * gradient_MP
        steps_N = before["steps"].clone()
        steps_N[cohort_M] += steps_M1[:, 0]

        w_P = state.w_P - update.delta_MP.mean(0)
        rounds = before["rounds"] + 1
        is_due = rounds == self.P
        start_P = before["start"]
        amplified_P = start_P + self.gamma * (w_P - start_P)
        w_P = torch.where(is_due, amplified_P, w_P)
        steps_N1 = steps_N[:, None]
        renewed_NP = torch.where(
            steps_N1 > 0, gradients_NP / steps_N1.clamp_min(1), c_NP
        )
        server = {
            "start": torch.where(is_due, w_P, start_P),
            "rounds": torch.where(is_due, 0, rounds),
            "c": torch.where(is_due, renewed_NP, c_NP),
            "gradients": torch.where(is_due, 0.0, gradients_NP),
            "steps": torch.where(is_due, 0.0, steps_N),
        }
        return State(w_P, server)
