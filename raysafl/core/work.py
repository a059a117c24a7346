"""What a simulation asks of the machine that trains and evaluates.

A simulation has one or more cells: one for each of its replicates. In each round it
yields three kinds of requests, which are data: `Training`, `TrainAccuracy` and
`Evaluation`. All of them name cells by their numbers, and so do the answers. Therefore
the requests of many simulations can be merged into one, and each simulation finds its
own cells in the answer.

Two classes of `raysafl.runtime` are a `Work`, which carries requests out: `Worker`
computes in this process and is the readable reference, `OnActors` computes on Ray
actors, with the same results.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, TypeAlias

from torch import Tensor

from raysafl.core.algorithm import LocalTraining, MeanUpdate, Update
from raysafl.core.objective import Value
from raysafl.core.problem import FederatedData


class Cell(NamedTuple):
    """One replicate of one run, as far as its data are concerned.

    Args:
        data: How the dataset is split among clients and server.
        seed: The replicate's seed.
    """

    data: FederatedData
    seed: int


class Task(NamedTuple):
    """One local training of one client in one cell: the unit of work.

    Args:
        cell: The number of the cell.
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

    cell: int
    client: int
    w_P: Tensor
    local: LocalTraining
    seed: int
    round: int
    call: int
    offset_P: Tensor | None
    prox: float


class NamedModel(NamedTuple):
    """A model as its parameters by name, and what its recipe was called with.

    Args:
        trained: The parameters that are trained, by name.
        frozen: The frozen parameters, by name.
        input_shape: The shape of one sample.
        num_outputs: The `num_classes` with which `Model.build` was called.
    """

    trained: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor]
    input_shape: tuple[int, ...]
    num_outputs: int


Trained: TypeAlias = dict[int, Update | MeanUpdate]
"""For each cell, its mean if it is averaged, else one row for each of its tasks."""

Scores: TypeAlias = dict[int, dict[str, Value]]
"""For each cell the value of each column, as {"test_loss": 0.3, "val_mae": ...}."""


def scores_on(
    prefix: str, cells: Iterable[int], values: Iterable[Mapping[str, Value]]
) -> Scores:
    """Return scores from what was measured of each cell on one set of samples.

    Args:
        prefix: what names the set in columns: `test` or `val`.
        cells: the cells.
        values: the value of each metric, for each cell.
    """
    return {
        cell: {f"{prefix}_{name}": value for name, value in measured.items()}
        for cell, measured in zip(cells, values, strict=True)
    }


class Work(Protocol):
    """What a simulation asks of the machine: in one process, or on Ray actors."""

    def init(self, cell: int) -> Tensor:
        """Return a cell's initial parameters w_P."""

    def sizes(self, cell: int) -> tuple[list[int], int]:
        """Return a cell's sample counts: of every client, and of the server."""

    def shared_bytes(self, cell: int) -> int:
        """Return the bytes of the server's samples that each client is sent.

        They are 0 unless the run shares data.
        """

    def train(self, tasks: Sequence[Task], averaged: Collection[int] = ()) -> Trained:
        """Carry out the tasks, which may be of any clients and cells.

        Args:
            tasks: The tasks, at least one; those of one cell stand together.
            averaged: The cells of which only the mean over their tasks is needed. For
                the others, every task's own update is returned.
        """

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """Return each cell's accuracy (in [0, 1]) on some clients' samples.

        Raises:
            ValueError: the runs' objective has no accuracy.
        """

    def evaluate(self, w: Mapping[int, Tensor]) -> Scores:
        """Evaluate each cell's parameters on the test set.

        Cells with validation samples are evaluated on these too.
        """

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""


@dataclass(frozen=True)
class Training:
    """A request to carry out tasks; see `Work.train`, whose answer it gets.

    Args:
        tasks: The tasks; those of one cell stand together.
        averaged: The cells of which only the mean over their tasks is needed.
    """

    tasks: Sequence[Task]
    averaged: Collection[int]

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Return one request for several, which are of different cells."""
        tasks = [task for part in parts for task in part.tasks]
        return cls(tasks, {cell for part in parts for cell in part.averaged})

    def carry_out(self, work: Work) -> Trained:
        """Have the tasks carried out."""
        return work.train(self.tasks, self.averaged)


@dataclass(frozen=True)
class TrainAccuracy:
    """A request for accuracies on training samples; see `Work.train_accuracy`.

    Args:
        w: The parameters of each cell.
        ids: The clients whose samples are looked at, of the same cells.
    """

    w: Mapping[int, Tensor]
    ids: Mapping[int, Sequence[int]]

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Return one request for several, which are of different cells."""
        return cls(
            {cell: w_P for part in parts for cell, w_P in part.w.items()},
            {cell: ids for part in parts for cell, ids in part.ids.items()},
        )

    def carry_out(self, work: Work) -> dict[int, float]:
        """Have the accuracies measured."""
        return work.train_accuracy(self.w, self.ids)


@dataclass(frozen=True)
class Evaluation:
    """A request for test scores; see `Work.evaluate`.

    Args:
        w: The parameters of each cell.
    """

    w: Mapping[int, Tensor]

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Return one request for several, which are of different cells."""
        return cls({cell: w_P for part in parts for cell, w_P in part.w.items()})

    def carry_out(self, work: Work) -> Scores:
        """Have the parameters evaluated."""
        return work.evaluate(self.w)


WorkRequest: TypeAlias = Training | TrainAccuracy | Evaluation


class WorkLostError(RuntimeError):
    """The machine lost a call of `Work` again and again, perhaps for lack of memory."""
