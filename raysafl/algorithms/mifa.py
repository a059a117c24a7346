"""MIFA: memory-augmented impatient federated averaging (docs/papers.md#mifa)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from raysafl.algorithms.bases import without_rows
from raysafl.core.algorithm import Algorithm, Round, State, Train, Update
from raysafl.core.randomness import Key


class MIFA(Algorithm):
    """The last update of each absent client stands in for it.

        w <- w - lr * mean_i(row_i)

    where row_i is the update of client i's last round. The server also steps in a round
    without participants.

    Source: Gu et al. 2021, NeurIPS, algorithm 1 (docs/papers.md#mifa). The paper
    assumes that all clients participate in the first round. `over` says what happens
    where they do not.
    """

    remembers_clients: ClassVar[bool] = True
    acts_without_clients: ClassVar[bool] = True
    lr: float = Field(default=1.0, gt=0, description="Server learning rate.")
    over: Literal["all", "seen"] = Field(
        default="all",
        description='"all": the mean is over all clients, and new clients count as zero, so that '
        'the first steps are small; "seen": it is over clients that have participated.',
    )

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Start without rows, so that their mean over all clients is zero."""
        return without_rows(w_P, num_clients, "mean")

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Replace the cohort's rows and step along the mean of all rows.

        The mean is updated by the change of the rows, which costs less than summing
        all.
        """
        num_clients = state.server["num_clients"]
        mean_P = state.server["mean"]
        rows = state.clients
        if ids:
            update: Update = yield Train(state.w_P, ids)
            # Only the cohort's rows change, so the mean changes by their difference.
            change_MP = update.delta_MP - state.recall(ids)
            mean_P = mean_P + change_MP.sum(0) / num_clients
            rows = state.remember(ids, update.delta_MP)
        scale = num_clients / max(1, len(rows)) if self.over == "seen" else 1.0
        return State(
            state.w_P - self.lr * scale * mean_P,
            {"mean": mean_P, "num_clients": num_clients},
            rows,
        )
