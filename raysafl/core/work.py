"""What a simulation asks of the machine that trains and evaluates.

In each round the simulation turns the requests of all replicates' algorithms into
`Task`s, one per client, and gives them to `Work.train` as one batch; it gives the new
parameters to `Work.evaluate`. Two classes of `raysafl.runtime` are a `Work`: `Worker`
computes in this process and is the readable reference, `OnActors` computes on Ray
actors, with the same results.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from raysafl.core.algorithm import LocalTraining, MeanUpdate, Update


class Task(NamedTuple):
    """One local training of one client in one replicate: the unit of work.

    Args:
        replicate: The number of the replicate.
        client: The client's id, SERVER or EVERYONE.
        w_P: The parameters [P] that the training starts from.
        local: The local training.
        seed: The replicate's seed.
        round: The round; with seed, call and client it determines the mini-batches.
        call: The number of this request among those of the round, from 1 on, so that
            two requests of a round do not draw the same mini-batches.
        offset_P: A vector [P] that is added to every gradient, or None.
        prox: Weight of the pull towards the start.
    """

    replicate: int
    client: int
    w_P: Tensor
    local: LocalTraining
    seed: int
    round: int
    call: int
    offset_P: Tensor | None
    prox: float


@dataclass(frozen=True)
class Trained:
    """The answer to `Work.train`.

    Args:
        rows: One row for each task of the replicates that are not in `averaged`, in the
            order of the tasks.
        means: For each averaged replicate, the mean over its tasks.
    """

    rows: Update
    means: Mapping[int, MeanUpdate]


Scores: TypeAlias = dict[int, tuple[float, float]]
"""Test accuracy (a fraction) and mean test loss of each replicate."""


class Work(Protocol):
    """What a simulation asks of the machine: in one process, or on Ray actors."""

    def init(self) -> list[Tensor]:
        """Return the initial parameters w_P of each replicate."""

    def sizes(self) -> list[tuple[list[int], int]]:
        """Return each replicate's sample counts: of every client, and of the server."""

    def shared_bytes(self) -> list[int]:
        """Return the bytes of the server's samples that each client is sent.

        There is one number for each replicate; it is 0 unless the run shares data.
        """

    def train(self, tasks: Sequence[Task], averaged: Collection[int] = ()) -> Trained:
        """Carry out the tasks, which may be of any clients and replicates.

        Args:
            tasks: The tasks; those of one replicate stand together.
            averaged: Numbers of the replicates of which only the mean over their tasks
                is needed. For the others, every task's own update is returned.
        """

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Begin to evaluate each replicate's parameters on the test set.

        Returns:
            A function that waits for the scores and returns them. Training may be asked
            for before it is called; the scores are those of the parameters given here.
        """

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Return each replicate's accuracy (in [0, 1]) on some clients' samples."""
