"""What a simulation asks of the machine that trains and evaluates.

A round yields requests, which are data. `Training` asks for the updates of some clients,
and `Evaluation` for sums of measures over rows of the dataset that it names; what the sums
mean, the simulation knows (`raysafl.simulation.replicates`). Each is about R cells at once,
the replicates of a group, and its arrays have an axis for them; R may be 1.
Requests of one kind, of many groups, are carried out together, and the answers come in the
order of the requests.

The machine makes `Tasks` of all trainings that it is asked for at a time: one table, with
a row for each client that trains.

Two classes of `raysafl.runtime` are a `Work`, which carries requests out: `Worker`
computes in this process and is the readable reference, `OnActors` computes on Ray
actors, with the same results.
"""

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    """A request to train M clients of each of R cells; see `Work.train`.

    Args:
        cells_R: The numbers of the cells.
        seeds_R: Their replicates' seeds.
        round: The round; with seed, call and client it determines the mini-batches.
        call: The number of this request among those of the round, from 1 on, so that
            two requests of a round do not draw the same mini-batches. Trainings that
            only serve an evaluation have the number 0.
        clients_RM: The ids of each cell's clients, SERVER or EVERYONE.
        w: The parameters from which all clients of a cell start [R, P], or of each
            client its own [R, M, P].
        locals: The distinct local trainings.
        local_R: The position of each cell's among them; None: there is one for all.
        offset_RMP: For each client a vector that is added to all of its gradients.
        prox_R: The weight of the pull towards the start; None: 0.
        averaged: Whether only the mean over the M updates is needed.
        weight_RM: The weight of each update in the mean; each row has the mean 1. None:
            all weigh the same.
        before_RM: The number of steps that each client has taken in earlier rounds, if
            training goes on (`ContinuedTraining`).
        moments_RMVP: The V vectors that each client has kept of its optimizer; None
            unless the answer is to hold those that it keeps next.
    """

    cells_R: Ints
    seeds_R: NDArray[np.uint64]
    round: int
    call: int
    clients_RM: Ints
    w: Tensor
    locals: Sequence[LocalTraining]
    local_R: Ints | None = None
    offset_RMP: Tensor | None = None
    prox_R: Floats | None = None
    averaged: bool = False
    weight_RM: Floats | None = None
    before_RM: Ints | None = None
    moments_RMVP: Tensor | None = None


COLUMNS = np.dtype(
    [
        *((name, np.int32) for name in ("cell", "client", "round", "call", "local")),
        *((name, np.int32) for name in ("start", "offset", "moments", "averaged")),
        ("seed", np.uint64),
        ("before", np.int64),
        *((name, np.float64) for name in ("rate", "prox", "weight")),
    ],
    align=True,
)
# A row of a task without offset and moments.
BLANK = np.zeros((), COLUMNS)
BLANK["offset"] = BLANK["moments"] = -1
BLANK["weight"] = 1.0


@dataclass(frozen=True)
class Tasks:
    """Local trainings of clients, of any cells: one row for each, the unit of work.

    The vectors of all tasks are rows of matrices, which are the requests' own: a row is
    named by its number, counted from the first matrix on.

    Args:
        columns: [T] rows of these columns. "cell", "client", "seed", "round", "call",
            "prox", "weight" and "before" are as in `Training`. "rate" is the
            learning rate. "local" is a position in `locals`. "start" and "offset" are
            rows of `starts` and `offsets`, and "moments" is the first of the rows of
            `moments` that the client has kept; -1 means that there is none. "averaged" is
            the number of updates in the mean of the task's cell; 0 if its own update is
            asked for.
        locals: Local trainings.
        starts: Matrices with P columns. The tasks of one cell may share a start.
        offsets: Likewise.
        moments: Likewise.

    The tasks of one cell stand together.
    """

    columns: NDArray[Any]
    locals: Sequence[LocalTraining]
    starts: Sequence[Tensor]
    offsets: Sequence[Tensor] = ()
    moments: Sequence[Tensor] = ()

    @classmethod
    def of(cls, asked: Sequence[Training]) -> Self:
        """Return the tasks of some requests, in their order."""
        columns = np.empty(sum(request.clients_RM.size for request in asked), COLUMNS)
        starts, offsets, moments = (_Blocks() for _ in range(3))
        locals = _Locals()
        stop = 0
        for request in asked:
            start = stop
            stop += request.clients_RM.size
            clients = request.clients_RM.shape[1]
            row_RM = columns[start:stop].reshape(-1, clients)
            row_RM[...] = BLANK
            row_RM["round"] = request.round
            row_RM["call"] = request.call
            if request.averaged and clients > 1:
                # The mean of one update is the update.
                row_RM["averaged"] = clients
            row_RM["cell"] = request.cells_R[:, None]
            row_RM["seed"] = request.seeds_R[:, None]
            row_RM["client"] = request.clients_RM
            firsts = starts.add(request.w)
            row_RM["start"] = firsts if request.w.ndim == 3 else firsts[:, None]
            if request.offset_RMP is not None:
                row_RM["offset"] = offsets.add(request.offset_RMP)
            if request.moments_RMVP is not None:
                row_RM["moments"] = moments.add(request.moments_RMVP)[..., 0]
            number_R, rate_R = locals.add(request)
            row_RM["local"] = number_R[:, None]
            row_RM["rate"] = rate_R[:, None]
            if request.prox_R is not None:
                row_RM["prox"] = request.prox_R[:, None]
            if request.weight_RM is not None:
                row_RM["weight"] = request.weight_RM
            if request.before_RM is not None:
                row_RM["before"] = request.before_RM
        blocks = (starts.blocks, offsets.blocks, moments.blocks)
        return cls(columns, locals.distinct, *blocks)

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, some: slice | Ints | Sequence[int]) -> "Tasks":
        blocks = (self.starts, self.offsets, self.moments)
        return Tasks(self.columns[some], self.locals, *blocks)

    def cells(self) -> tuple[Ints, Ints]:
        """Return where the tasks of each cell begin, and how many they are."""
        cell_T = self.columns["cell"]
        (changes,) = (cell_T[1:] != cell_T[:-1]).nonzero()
        bounds = np.array([0, *(changes + 1).tolist(), len(cell_T)])
        return bounds[:-1], bounds[1:] - bounds[:-1]

    def alone(self) -> "Tasks":
        """Return these tasks with the vectors that they need, and no others."""
        columns = self.columns.copy()
        blocks = []
        for name, all_blocks, length_T in (
            ("start", self.starts, columns["start"] >= 0),
            ("offset", self.offsets, columns["offset"] >= 0),
            ("moments", self.moments, self.num_moments()),
        ):
            is_needed_V = np.zeros(sum(map(len, all_blocks)), bool)
            for v in range(int(length_T.max())):
                is_needed_V[columns[name][length_T > v] + v] = True
            number_V = np.append(np.cumsum(is_needed_V) - 1, -1)
            columns[name] = number_V[columns[name]]
            blocks.append(_needed(all_blocks, is_needed_V))
        return Tasks(columns, self.locals, *blocks)

    def num_moments(self) -> Ints:
        """Return how many vectors each task's client has kept of its optimizer, [T]."""
        moments_T = self.by_local(lambda local: local.num_moments)
        return np.where(self.columns["moments"] < 0, 0, moments_T)

    def by_local(self, number: Callable[[LocalTraining], float]) -> NDArray[Any]:
        """Return a number for each task that depends on its local training, [T]."""
        numbers = np.array([number(local) for local in self.locals])
        number_T: NDArray[Any] = numbers[self.columns["local"]]
        return number_T

    def alike(
        self, key: Callable[[LocalTraining], Hashable]
    ) -> Iterator[tuple[LocalTraining, slice | NDArray[np.bool_]]]:
        """Yield for each value of a key a local training, and which tasks have it.

        Args:
            key: What is equal for local trainings that are treated alike.
        """
        first_of: dict[Hashable, int] = {}
        numbers = [
            first_of.setdefault(key(local), number)
            for number, local in enumerate(self.locals)
        ]
        if len(first_of) == 1:
            yield self.locals[0], slice(None)
            return
        number_T = np.array(numbers)[self.columns["local"]]
        for number in first_of.values():
            yield self.locals[number], number_T == number

    def stacked(self, name: Literal["start", "offset"]) -> Tensor:
        """Return a copy of the tasks' starts or offsets, [T, P]; zeros for no offset."""
        blocks = self.starts if name == "start" else self.offsets
        row_T = self.columns[name]
        (some,) = (row_T >= 0).nonzero()
        if len(some) == len(row_T):
            return chosen_rows(blocks, row_T)
        stacked_TP = self.starts[0].new_zeros(len(self), self.starts[0].shape[1])
        if len(some):
            stacked_TP[torch.from_numpy(some)] = chosen_rows(blocks, row_T[some])
        return stacked_TP


class _Blocks:
    """The matrices of several requests, and how many rows they have together."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.rows = 0

    def add(self, vectors: Tensor) -> Ints:
        """Add vectors [..., P], and return the rows [...] that they have become."""
        first = self.rows
        shape = vectors.shape[:-1]
        self.rows += math.prod(shape)
        self.blocks.append(vectors if len(shape) == 1 else vectors.flatten(0, -2))
        return np.arange(first, self.rows).reshape(shape)


class _Locals:
    """The local trainings of several requests, each object once."""

    def __init__(self) -> None:
        self.distinct: list[LocalTraining] = []
        self._number_of: dict[int, int] = {}

    def add(self, request: Training) -> tuple[Ints, Floats]:
        """Add the local trainings of a request.

        Returns:
            The position in `distinct` of each cell's, and its learning rate, [R]; both
            have one entry if it is one for all cells.
        """
        numbers = []
        for local in request.locals:
            if id(local) not in self._number_of:
                self._number_of[id(local)] = len(self.distinct)
                self.distinct.append(local)
            numbers.append(self._number_of[id(local)])
        rates = [local.rate(request.round) for local in request.locals]
        local_R = np.zeros(1, int) if request.local_R is None else request.local_R
        return np.array(numbers)[local_R], np.array(rates)[local_R]


def chosen_rows(blocks: Sequence[Tensor], rows: Ints) -> Tensor:
    """Return a copy of some rows of matrices, which are counted from the first one on."""
    if 1 < len(blocks) and sum(map(len, blocks)) <= len(rows):
        # All of them are no larger than the copy.
        blocks = [torch.cat(list(blocks))]
    if len(blocks) == 1:
        return blocks[0].index_select(0, torch.from_numpy(rows.astype(np.int64)))
    order = np.argsort(rows, kind="stable")
    rising = rows[order].astype(np.int64)
    begins = np.cumsum([0, *map(len, blocks)])
    cuts = np.searchsorted(rising, begins).tolist()
    chosen_TP = blocks[0].new_empty(len(rows), blocks[0].shape[1])
    for block, begin, start, stop in zip(
        blocks, begins.tolist(), cuts, cuts[1:], strict=False
    ):
        if start < stop:
            own = block.index_select(0, torch.from_numpy(rising[start:stop] - begin))
            chosen_TP[torch.from_numpy(order[start:stop])] = own
    return chosen_TP


def _needed(blocks: Sequence[Tensor], is_needed_V: NDArray[np.bool_]) -> list[Tensor]:
    """Return the rows of matrices that are needed; those of a whole one are not copied."""
    parts = []
    stop = 0
    for block in blocks:
        start = stop
        stop += len(block)
        (some,) = np.nonzero(is_needed_V[start:stop])
        if len(some):
            is_whole = len(some) == len(block)
            parts.append(block if is_whole else block[torch.from_numpy(some)])
    return parts


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


class GroupSums(NamedTuple):
    """The sums over the groups of rows that a name means.

    Args:
        size_G: The number of samples in each group.
        sums_Gn: For each of them the sums of all `Measures`, in order.
    """

    size_G: Ints
    sums_Gn: Floats


Summed: TypeAlias = dict[Rows, GroupSums]
"""The sums over the rows that one model was to be evaluated on."""


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

    def train(self, asked: Sequence[Training]) -> list[Update | MeanUpdate]:
        """Train clients of any cells.

        Args:
            asked: Requests about different cells, at least one.

        Returns:
            The answer to each request: the means of its cells' updates if these were asked
            for, else a row for each client. All columns have a leading axis R. They belong
            to whoever asked, who may change them in place.
        """

    def sums(self, asked: "Sequence[Evaluation]") -> list[list[Summed]]:
        """Evaluate parameters: sum all `measures` over rows.

        Args:
            asked: Requests, at least one.

        Returns:
            For each request the sums of each of its models.
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


class Evaluation(NamedTuple):
    """A request for sums of measures over named rows; see `Work.sums`.

    Args:
        cells_R: The numbers of the R cells, which say what the names mean.
        w_RP: The parameters of each. Nobody may change them in place afterwards.
        over: The names of the rows of each, usually R times the identical list.
    """

    cells_R: Ints
    w_RP: Tensor
    over: Sequence[Sequence[Rows]]


WorkRequest: TypeAlias = Training | Evaluation


class TooLargeError(MemoryError):
    """One piece of work alone needs more memory than the machine has."""


class WorkLostError(RuntimeError):
    """The machine lost a call of `Work` again and again, perhaps for lack of memory."""
