"""FedAmplify: FedAvg whose progress is amplified every few rounds (docs/papers.md#fedamplify)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from raysafl.core.algorithm import Algorithm, MeanUpdate, Round, State, TrainMean
from raysafl.core.randomness import Key


class FedAmplify(Algorithm):
    """FedAvg that amplifies its progress every P client rounds.

        w <- w_start + eta (w - w_start)

    where w_start is the model P client rounds ago. P should be so large that every
    client participates within P rounds. P and eta depend on that process and so have no
    default; eta = 1 is FedAvg. Inside SAFARI, server rounds add to the progress, but
    they are not counted. A round without participants is not counted.

    Source: Wang and Ji 2022, NeurIPS (docs/papers.md#fedamplify).
    """

    P: int = Field(gt=0, description="Client rounds between two amplifications.")
    eta: float = Field(gt=0, description="Factor of the amplification.")

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Remember the initial model as the start of the first P rounds."""
        return State(w_P, {"start": w_P.clone(), "count": torch.tensor(0)})

    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Average the updates, and amplify the progress of the last P rounds if due."""
        update: MeanUpdate = yield TrainMean(state.w_P, ids)
        w_P = state.w_P - update.delta_P
        start_P = state.server["start"]
        count = state.server["count"] + 1
        # The progress since `start_P` is amplified, and the next P rounds begin here.
        is_due = count == self.P
        amplified_P = w_P + (self.eta - 1) * (w_P - start_P)
        w_P = torch.where(is_due, amplified_P, w_P)
        server = {
            "start": torch.where(is_due, w_P, start_P),
            "count": torch.where(is_due, 0, count),
        }
        return replace(state, w_P=w_P, server=server)
