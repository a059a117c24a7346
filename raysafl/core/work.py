"""What a simulation asks of the machine that trains and evaluates.

A round of a replicate yields requests, which are data. `Training` asks for the updates of
some clients, and `Evaluation` for sums of measures over rows of the dataset that it names;
what the sums mean, the simulation knows (`raysafl.simulation.scores`).
`PersonalEvaluation` asks for both: sums over the test samples of clients whose models
train first. Each is about one cell, and answers are given by the numbers of cells.
Therefore requests of one kind, of many replicates, are carried out together, and each
replicate finds its own cell in the answer.

The machine makes `Tasks` of all trainings that it is asked for at a time: one table, with
a row for each client that trains.

Two classes of `raysafl.runtime` are a `Work`, which carries requests out: `Worker`
computes in this process and is the readable reference, `OnActors` computes on Ray
actors, with the same results.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raysafl.core.algorithm import LocalTraining, MeanUpdate, Update
from raysafl.core.objective import Measures
from raysafl.core.problem import Dataset, FederatedData

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


class Cell(NamedTuple):
    """One replicate of one run, as far as its data are concerned.

    Args:
        data: How the dataset is split among clients and server.
        seed: The replicate's seed.
    """

    data: FederatedData
    seed: int


class Training(NamedTuple):
    """A request to train clients of one cell; see `Work.train`.

    Args:
        cell: The number of the cell.
        clients: The M clients' ids, SERVER or EVERYONE.
        w: The parameters from which all of them start [P], or a row for each [M, P].
        local: The local training.
        seed: The replicate's seed.
        round: The round; with seed, call and client it determines the mini-batches.
        call: The number of this request among those of the round, from 1 on, so that
            two requests of a round do not draw the same mini-batches. Trainings that
            only serve an evaluation have the number 0.
        offset_MP: A vector [P] for each client that is added to all of its gradients.
        prox: Weight of the pull towards the start.
        averaged: Whether only the mean of the updates is needed.
        weights: The weight of each update in the mean; they have the mean 1. None: all
            weigh the same.
        before: The number of steps that each client has taken in earlier rounds, if
            training goes on (`ContinuedTraining`).
        moments: For each client the vectors [P] that it has kept of its optimizer; empty
            unless the answer is to hold those that it keeps next.
    """

    cell: int
    clients: Sequence[int]
    w: Tensor
    local: LocalTraining
    seed: int
    round: int
    call: int
    offset_MP: Tensor | None = None
    prox: float = 0.0
    averaged: bool = False
    weights: Sequence[float] | None = None
    before: Sequence[int] = ()
    moments: Sequence[Sequence[Tensor]] = ()

    @staticmethod
    def carry_out(work: "Work", asked: "Sequence[Training]") -> "dict[int, Trained]":
        """Have the clients of several cells trained."""
        return work.train(asked)


# The columns that are positions among vectors.
VECTORS = ("start", "offset", "moments")
COLUMNS = np.dtype(
    [
        *((name, np.int32) for name in ("cell", "client", "round", "call", "local")),
        *((name, np.int32) for name in ("start", "offset", "moments", "averaged")),
        ("seed", np.uint64),
        ("before", np.int64),
        *((name, np.float64) for name in ("rate", "prox", "weight")),
    ]
)


@dataclass(frozen=True)
class Tasks:
    """Local trainings of clients, of any cells: one row for each, the unit of work.

    Args:
        columns: [T] rows of these columns. "cell", "client", "seed", "round", "call",
            "prox", "weight" and "before" are as in `Training`. "rate" is the
            learning rate. "local" is a position in `locals`. "start" and "offset" are
            positions in `vectors`, and so is "moments", the first of the vectors that
            the client has kept; -1 means that there is none. "averaged" is the number of
            updates in the mean of the task's cell; 0 if its own update is asked for.
        locals: Local trainings.
        vectors: Vectors [P]. The tasks of one cell may share a start.

    The tasks of one cell stand together.
    """

    columns: NDArray[Any]
    locals: Sequence[LocalTraining]
    vectors: Sequence[Tensor]

    @classmethod
    def of(cls, asked: Sequence[Training]) -> Self:
        """Return the tasks of some requests, in their order.

        Each request has one row, which is repeated for its clients, and columns in which
        the rows of its clients differ. Both are lists of Python's for as long as possible:
        a round of a small pack takes no longer than some assignments to arrays.
        """
        rows: list[tuple[float, ...]] = []
        clients: list[int] = []
        vectors: list[Tensor] = []
        locals: dict[int, LocalTraining] = {}
        number_of: dict[int, int] = {}
        # A column, the first of a request's rows, and the values in these rows.
        differing: list[tuple[str, int, Sequence[float]]] = []
        for request in asked:
            local = request.local
            locals.setdefault(id(local), local)
            first = len(clients)
            clients += request.clients
            start = len(vectors)
            vectors.extend([request.w] if request.w.ndim == 1 else request.w)
            offset = len(vectors)
            vectors.extend(() if request.offset_MP is None else request.offset_MP)
            moments = len(vectors)
            vectors.extend(vector_P for kept in request.moments for vector_P in kept)
            if request.w.ndim == 2:
                differing.append(("start", first, range(start, offset)))
            if request.offset_MP is not None:
                differing.append(("offset", first, range(offset, moments)))
            if request.moments:
                places = range(moments, len(vectors), local.num_moments)
                differing.append(("moments", first, places))
            if request.before:
                differing.append(("before", first, request.before))
            if request.weights is not None:
                differing.append(("weight", first, request.weights))
            # In the order of `COLUMNS`.
            row = (
                request.cell,
                0,
                request.round,
                request.call,
                number_of.setdefault(id(local), len(number_of)),
                start,
                -1,
                -1,
                len(request.clients) if request.averaged else 0,
                request.seed,
                0,
                local.rate(request.round),
                request.prox,
                1.0,
            )
            rows.append(row)
        sizes = [len(request.clients) for request in asked]
        columns = np.repeat(np.array(rows, COLUMNS), sizes)
        columns["client"] = clients
        for column, first, values in differing:
            columns[column][first : first + len(values)] = values
        return cls(columns, list(locals.values()), vectors)

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, some: slice | Ints | Sequence[int]) -> "Tasks":
        return replace(self, columns=self.columns[some])

    def cells(self) -> tuple[Ints, Ints]:
        """Return where the tasks of each cell begin, and how many they are."""
        cell_T = self.columns["cell"]
        (changes,) = np.nonzero(cell_T[1:] != cell_T[:-1])
        bounds = np.array([0, *(changes + 1).tolist(), len(cell_T)])
        return bounds[:-1], bounds[1:] - bounds[:-1]

    def alone(self) -> "Tasks":
        """Return these tasks with the vectors that they need, and no others."""
        columns = self.columns.copy()
        is_needed_V = np.zeros(len(self.vectors), bool)
        # How many vectors stand from each position on.
        moments_T = self.by_local(lambda local: local.num_moments)
        for name in VECTORS:
            each_T = moments_T if name == "moments" else np.ones_like(moments_T)
            for v in range(each_T.max()):
                some_T = (columns[name] >= 0) & (each_T > v)
                is_needed_V[columns[name][some_T] + v] = True
        number_V = np.append(np.cumsum(is_needed_V) - 1, -1)
        for name in VECTORS:
            columns[name] = number_V[columns[name]]
        (needed,) = np.nonzero(is_needed_V)
        return Tasks(columns, self.locals, [self.vectors[i] for i in needed.tolist()])

    def by_local(self, number: Callable[[LocalTraining], float]) -> NDArray[Any]:
        """Return a number for each task that depends on its local training, [T]."""
        numbers = np.array([number(local) for local in self.locals])
        found: NDArray[Any] = numbers[self.columns["local"]]
        return found

    def alike(
        self, key: Callable[[LocalTraining], Hashable]
    ) -> Iterator[tuple[LocalTraining, NDArray[np.bool_]]]:
        """Yield for each value of a key a local training, and which tasks have it, [T].

        Args:
            key: What is equal for local trainings that are treated alike.
        """
        first_of: dict[Hashable, int] = {}
        numbers = [
            first_of.setdefault(key(local), number)
            for number, local in enumerate(self.locals)
        ]
        number_T = np.array(numbers)[self.columns["local"]]
        for number in first_of.values():
            yield self.locals[number], number_T == number

    def distinct(self, name: Literal["start", "offset"]) -> tuple[list[Tensor], Ints]:
        """Return the tasks' starts or offsets, each once, and which one each task has.

        That of a task without an offset is zero.
        """
        used, which_T = np.unique(self.columns[name], return_inverse=True)
        # The position -1 is that of the last one.
        some = [*self.vectors, torch.zeros_like(self.vectors[0])]
        return [some[i] for i in used.tolist()], which_T

    def stacked(self, name: Literal["start", "offset"]) -> Tensor:
        """Return the tasks' starts or offsets, [T, P]; zeros for one without an offset."""
        rows = self.columns[name].tolist()
        some = self.vectors
        if min(rows) < 0:
            # The position -1 is that of the last one.
            some = [*self.vectors, torch.zeros_like(self.vectors[0])]
        return torch.stack([some[i] for i in rows])


class Trained(NamedTuple):
    """What has become of the tasks of a cell.

    Args:
        update: The mean of their updates if that was asked for, else a row for each.
        steps: The number of local steps that they took.
        samples: The number of training samples that they saw, but for the server's.
        loss: The sum of these samples' losses.
        correct: How many of them were classified correctly; NaN if the objective has no
            accuracy.
    """

    update: Update | MeanUpdate
    steps: int
    samples: int
    loss: float
    correct: float


class NamedModel(NamedTuple):
    """A model as its parameters by name.

    Args:
        trained: The parameters that are trained, by name.
        frozen: The frozen parameters and the buffers, by name.
    """

    trained: Mapping[str, Tensor]
    frozen: Mapping[str, Tensor]


TestsOn: TypeAlias = Literal["labels", "own"]
"""By which test samples a client is judged, see `raysafl.simulation.per_client.PerClient`."""


class Rows(NamedTuple):
    """The name of some rows of the dataset, which depend on the cell that names them.

    Args:
        kind: The test set ("test"); the cell's validation samples ("validation"); the
            training samples of some clients together ("train"); the test samples of
            each class ("classes"); or those that belong to each client ("own"). The
            last two are several groups of rows, the others are one.
        clients: For "train" the clients, which may be SERVER or EVERYONE.
        groups: The numbers of the groups that are meant; None: all.
    """

    kind: Literal["test", "validation", "train", "classes", "own"]
    clients: tuple[int, ...] = ()
    groups: tuple[int, ...] | None = None


TEST = Rows("test")
VALIDATION = Rows("validation")
CLASSES = Rows("classes")
OWN = Rows("own")

RowsOfCells: TypeAlias = Mapping[int, Sequence[Rows]]
"""For each cell the names of the rows on which its parameters are evaluated."""


WeightedRows: TypeAlias = tuple[Rows, Sequence[float]]
"""Rows, and by how much the sums over each of their groups count in one sum."""


class GroupSums(NamedTuple):
    """The sums over the groups of rows that a name means.

    Args:
        size_G: The number of samples in each group.
        sums_Gn: For each of them the sums of all `Measures`, in order.
    """

    size_G: Ints
    sums_Gn: Floats


Summed: TypeAlias = dict[int, dict[Rows, GroupSums]]
"""For each cell the sums over the rows that it has named."""


class ClientTests(NamedTuple):
    """By which test samples the clients of a cell are judged.

    Args:
        on: Whether they match the clients' label mixes, or are the clients' own.
        held_N: How many training samples each client has.
        tests_N: How many test samples each client has.
        labels_NC: How many samples of each class each client itself holds; None if
            samples have no class.
        sizes_C: How many test samples of each class there are, likewise.
    """

    on: TestsOn
    held_N: Ints
    tests_N: Ints
    labels_NC: Ints | None
    sizes_C: Ints | None


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

    def train(self, asked: Sequence[Training]) -> dict[int, Trained]:
        """Train clients of any cells.

        Args:
            asked: Requests of different cells, at least one.

        Returns:
            The answer for each cell.
        """

    def sums(self, w: Mapping[int, Tensor], over: RowsOfCells) -> Summed:
        """Evaluate each cell's parameters: sum all `measures` over rows.

        Args:
            w: The parameters of each cell.
            over: The names of the rows, for the same cells.
        """

    @property
    def dataset(self) -> Dataset:
        """The training and test samples."""

    @property
    def measures(self) -> Measures:
        """What is summed."""

    def model_of(self, w_P: Tensor) -> NamedModel:
        """Return a model as its parameters by name."""

    def client_names(self, cell: int) -> tuple[str, ...]:
        """Return the names of a cell's clients; nothing if they have none."""

    def client_tests(self, cell: int, on: TestsOn) -> ClientTests:
        """Return by which test samples a cell's clients are judged.

        Args:
            cell: The cell.
            on: By which test samples clients are judged.

        Raises:
            ValueError: A client has no test samples.
        """

    def personal_sums(
        self, asked: Sequence[Training], over: Sequence[WeightedRows]
    ) -> dict[int, Floats]:
        """Train clients, and sum all `measures` of the models with which they end.

        Args:
            asked: Requests of different cells.
            over: The rows of each of their clients.

        Returns:
            For each cell the weighted sums [M, n], in the order of its clients.
        """


class Evaluation(NamedTuple):
    """A request for sums of measures over named rows; see `Work.sums`.

    Args:
        cell: The number of the cell.
        w_P: The parameters.
        over: The names of the rows.
    """

    cell: int
    w_P: Tensor
    over: Sequence[Rows]

    @staticmethod
    def carry_out(work: Work, asked: "Sequence[Evaluation]") -> Summed:
        """Have the parameters of several cells evaluated."""
        w = {own.cell: own.w_P for own in asked}
        return work.sums(w, {own.cell: own.over for own in asked})


class PersonalEvaluation(NamedTuple):
    """A request to evaluate clients' own models; see `Work.personal_sums`.

    Args:
        training: The training of these models.
        over: The rows on which each of them is evaluated.
    """

    training: Training
    over: Sequence[WeightedRows]

    @staticmethod
    def carry_out(
        work: Work, asked: "Sequence[PersonalEvaluation]"
    ) -> dict[int, Floats]:
        """Have the models of several cells trained and evaluated."""
        over = [rows for own in asked for rows in own.over]
        return work.personal_sums([own.training for own in asked], over)


WorkRequest: TypeAlias = Training | Evaluation | PersonalEvaluation


class TooLargeError(MemoryError):
    """One piece of work alone needs more memory than the machine has."""


class WorkLostError(RuntimeError):
    """The machine lost a call of `Work` again and again, perhaps for lack of memory."""
