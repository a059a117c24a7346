"""What some algorithms have in common: an inner one, local training, a row for each client."""

from collections.abc import Generator, Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor

from raysafl.algorithms.fedavg import FedAvg
from raysafl.core.algorithm import (
    Algorithm,
    AskLosses,
    LocalTraining,
    MeanUpdate,
    Setting,
    State,
)

# Steps at this learning rate leave float32 parameters as they are; zeros move by nothing that
# a loss would show.
NO_RATE = 1e-30


class Around(Algorithm):
    """An algorithm around another one, whose state is that of the inner one."""

    abstract: ClassVar[bool] = True
    acts_without_clients: ClassVar[bool] = True
    inner: SerializeAsAny[Algorithm] = Field(
        default_factory=FedAvg, description="The algorithm inside."
    )

    @property
    def uses_server_data(self) -> bool:
        """Return whether the inner algorithm trains on D0."""
        return self.inner.uses_server_data

    def prepare(self, setting: Setting) -> Self:
        """Return this algorithm with its inner algorithm prepared."""
        return super().prepare(setting).replace(inner=self.inner.prepare(setting))

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Return the initial state of the inner algorithm."""
        return self.inner.init(w_P, num_clients)


class KnowsLocalTraining(Algorithm):
    """An algorithm that is told the run's local training before the first round."""

    abstract: ClassVar[bool] = True
    local: SerializeAsAny[LocalTraining] | None = Field(
        default=None,
        description="Leave it out: it is filled in with the run's local training.",
    )

    def prepare(self, setting: Setting) -> Self:
        """Return this algorithm with the run's local training."""
        return self.replace(local=setting.local)

    def losses(
        self, w_P: Tensor, ids: Sequence[int], batches: int | None = None
    ) -> Generator[AskLosses, MeanUpdate, Tensor]:
        """Ask clients for the mean losses [M] of w_P, on some mini-batches or on all samples.

        Each is sent w_P, and sends one number. Its mini-batches count as local steps, and are
        computed as theirs, with dropout and augmentation.
        """
        assert self.local, "prepare() fills in the run's local training"
        epochs = None if batches else 1
        still = self.local.begun_anew(
            lr=NO_RATE, epochs=epochs, steps=batches, schedule=None
        )
        answer = yield AskLosses(w_P, ids, local=still)
        return answer.loss_M


def without_rows(w_P: Tensor, num_clients: int, mean: str) -> State:
    """Return the state before round 0, in which all rows and their mean are zero.

    Args:
        w_P: the initial parameters.
        num_clients: the number of all clients, which the server's state keeps.
        mean: the name of the mean in the server's state.
    """
    # A state holds tensors only, so that it can be stored as a checkpoint.
    count = torch.tensor(float(num_clients))
    return State(w_P, {mean: torch.zeros_like(w_P), "num_clients": count})
