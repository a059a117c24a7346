"""Four clients with known samples, of whom two never participate."""

from typing import Any

import numpy as np

import raysafl as fl
from raysafl.data import ByUser, Dataset, Samples
from raysafl.data.sources import Source
from raysafl.participation import Cyclic

# How many training samples of each of the four classes each client holds.
HELD = np.array([[3, 1, 0, 0], [0, 2, 0, 0], [2, 0, 2, 0], [0, 0, 0, 4]])
# How many test samples of each class each user has made.
TESTS = np.array([[2, 1, 1, 2], [3, 0, 2, 0], [1, 1, 2, 2], [0, 3, 1, 3]])


def _samples(counts: Any, seed: int) -> Samples:
    """Inputs that tell their class, with so much noise that not all are easy."""
    user, label = np.divmod(np.repeat(np.arange(16), counts.reshape(-1)), 4)
    rng = np.random.default_rng(seed)
    x = np.eye(4)[label] + rng.normal(0, 0.6, (len(label), 4))
    return Samples(x.astype(np.float32), label, users=user)


class FourUsers(Source):
    """Four users of four classes."""

    def load(self) -> Dataset:
        """The samples of HELD and TESTS."""
        return Dataset("four users", _samples(HELD, 0), _samples(TESTS, 1), 4)


FOUR = fl.Run(
    data=fl.Federation(dataset=FourUsers(), clients=4, partition=ByUser()),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    # Client 0 participates in every round, and client 1 in every second one.
    participation=Cyclic(groups=[[0, 1], [0]]),
    local=fl.LocalTraining(lr=0.5, batch_size=2, epochs=1),
    rounds=4,
    replicates=2,
    eval_clients=fl.PerClient(every=2),
)
