"""What a simulation asks of the machine that trains and evaluates.

A simulation has one or more cells: one for each of its replicates. In each round it
yields requests, which are data: `Training`, `TrainAccuracy` and `Evaluation`, and if its
run evaluates clients one by one, `ClientEvaluation` and `PersonalEvaluation`. All of
them name cells by their numbers, and so do the answers. Therefore the requests of many
simulations can be merged into one, and each simulation finds its own cells in the
answer.

Two classes of `raysafl.runtime` are a `Work`, which carries requests out: `Worker`
computes in this process and is the readable reference, `OnActors` computes on Ray
actors, with the same results.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
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
            two requests of a round do not draw the same mini-batches. Trainings that
            only serve an evaluation have the number 0.
        offset_P: A vector [P] that is added to every gradient, or None.
        prox: Weight of the pull towards the start.
        weight: The weight of its update in the mean of the cell's tasks, if that is
            what is asked for. The weights of a cell's tasks have the mean 1.
        max_norm: The L2 norm to which a longer update is scaled down; None: no limit.
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
    weight: float = 1.0
    max_norm: float | None = None


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


TestsOn: TypeAlias = Literal["labels", "own"]
"""By which test samples a client is judged, see `raysafl.simulation.per_client.PerClient`."""


class ClientScores(NamedTuple):
    """How well one cell's model serves each of its clients.

    Args:
        quality_N: The value of the objective's `metric` on each client's test samples.
        loss_N: The mean loss on them.
        absent: The value of that metric on the test samples of the classes that clients
            hold, but none that has trained so far; None if there is no such class, or
            if samples have no class.
    """

    quality_N: NDArray[np.float64]
    loss_N: NDArray[np.float64]
    absent: float | None


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

    def client_names(self, cell: int) -> tuple[str, ...]:
        """Return the names of a cell's clients; nothing if they have none."""

    def client_tests(self, cell: int, on: TestsOn) -> tuple[list[int], list[int]]:
        """Return how many training and how many test samples each client has.

        Args:
            cell: The cell.
            on: By which test samples clients are judged.

        Raises:
            ValueError: A client has no test samples.
        """

    def evaluate_clients(
        self,
        w: Mapping[int, Tensor],
        on: Mapping[int, TestsOn],
        came: Mapping[int, NDArray[np.bool_]],
    ) -> dict[int, ClientScores]:
        """Evaluate each cell's parameters on the test samples of each client.

        Args:
            w: The parameters of each cell.
            on: By which test samples its clients are judged.
            came: For each of its clients, whether it has trained so far.
        """

    def evaluate_personal(
        self, tasks: Sequence[Task], on: Mapping[int, TestsOn]
    ) -> dict[int, NDArray[np.float64]]:
        """Train each task, and evaluate where it ends on its client's test samples.

        Args:
            tasks: Tasks of clients; those of one cell stand together.
            on: By which test samples the clients of each cell are judged.

        Returns:
            For each cell the value of the objective's `metric`, in the order of its
            tasks.
        """


@dataclass(frozen=True)
class Mergeable:
    """A request whose fields are about cells, so that several become one."""

    @classmethod
    def merged(cls, parts: Sequence[Self]) -> Self:
        """Return one request for several, which are of different cells."""
        return cls(
            *map(_joined_fields, zip(*(vars(p).values() for p in parts), strict=True))
        )


def _joined_fields(fields: Sequence[Any]) -> Any:
    """Join what several requests say: mappings by their cells, tasks one after another."""
    if isinstance(fields[0], Mapping):
        return {cell: own for field in fields for cell, own in field.items()}
    return [own for field in fields for own in field]


@dataclass(frozen=True)
class Training(Mergeable):
    """A request to carry out tasks; see `Work.train`, whose answer it gets.

    Args:
        tasks: The tasks; those of one cell stand together.
        averaged: The cells of which only the mean over their tasks is needed.
    """

    tasks: Sequence[Task]
    averaged: Collection[int]

    def carry_out(self, work: Work) -> Trained:
        """Have the tasks carried out."""
        return work.train(self.tasks, self.averaged)


@dataclass(frozen=True)
class TrainAccuracy(Mergeable):
    """A request for accuracies on training samples; see `Work.train_accuracy`.

    Args:
        w: The parameters of each cell.
        ids: The clients whose samples are looked at, of the same cells.
    """

    w: Mapping[int, Tensor]
    ids: Mapping[int, Sequence[int]]

    def carry_out(self, work: Work) -> dict[int, float]:
        """Have the accuracies measured."""
        return work.train_accuracy(self.w, self.ids)


@dataclass(frozen=True)
class Evaluation(Mergeable):
    """A request for test scores; see `Work.evaluate`.

    Args:
        w: The parameters of each cell.
    """

    w: Mapping[int, Tensor]

    def carry_out(self, work: Work) -> Scores:
        """Have the parameters evaluated."""
        return work.evaluate(self.w)


@dataclass(frozen=True)
class ClientEvaluation(Mergeable):
    """A request to judge a model by each client; see `Work.evaluate_clients`.

    Args:
        w: The parameters of each cell.
        on: By which test samples its clients are judged.
        came: For each of its clients, whether it has trained so far.
    """

    w: Mapping[int, Tensor]
    on: Mapping[int, TestsOn]
    came: Mapping[int, NDArray[np.bool_]]

    def carry_out(self, work: Work) -> dict[int, ClientScores]:
        """Have the parameters evaluated."""
        return work.evaluate_clients(self.w, self.on, self.came)


@dataclass(frozen=True)
class PersonalEvaluation(Mergeable):
    """A request to judge clients' own models; see `Work.evaluate_personal`.

    Args:
        tasks: The trainings of these models; those of one cell stand together.
        on: By which test samples the clients of each cell are judged.
    """

    tasks: Sequence[Task]
    on: Mapping[int, TestsOn]

    def carry_out(self, work: Work) -> dict[int, NDArray[np.float64]]:
        """Have the models trained and evaluated."""
        return work.evaluate_personal(self.tasks, self.on)


WorkRequest: TypeAlias = (
    Training | TrainAccuracy | Evaluation | ClientEvaluation | PersonalEvaluation
)


class WorkLostError(RuntimeError):
    """The machine lost a call of `Work` again and again, perhaps for lack of memory."""
