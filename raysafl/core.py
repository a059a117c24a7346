"""The vocabulary of the package: what an algorithm asks for, and what comes back.

Suffixes name axes: _P flat model parameters, _M this round's cohort, _T local-training
tasks, _R replicates (seeds) of one run.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from raysafl.component import Component
from raysafl.key import Key as Key
from raysafl.parts import pack

SERVER = -1  # the id under which the server trains on its own data
EVERYONE = -2  # the id under which all clients' data is trained on as one: centralised SGD


class SGD(Component):
    """Local training: mini-batch steps on g + offset + prox * (w - w_start) + weight_decay * w.

    `optimizer="sgd"` is w <- w - lr * v with v <- momentum * v + (the above); "adam" is
    Kingma & Ba's with torch's constants (0.9, 0.999, 1e-8). Both are those of torch.optim,
    weight decay (an L2 term in either) included. Their buffers start at zero in every round
    and at every client, and are not sent: the usual choice where a paper names none.

    The rate of round t is lr * decay^(number of milestones <= t): milestones=[5000] halves it at
    round 5,000 (FAST). Rounds count from 0.

    Give `epochs` (passes over the client's data, reshuffled each pass; the last batch of a
    pass may be short) or `steps` (mini-batches, wrapping over passes), not both.
    """

    lr: float = Field(gt=0)
    batch_size: int = Field(gt=0)
    epochs: int | None = Field(default=None, gt=0)
    steps: int | None = Field(default=None, gt=0)
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    milestones: list[PositiveInt] = Field(default=[])
    decay: float = Field(default=0.5, gt=0)

    @model_validator(mode="after")
    def _fits(self) -> "SGD":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give epochs=... or steps=..., exactly one of them")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(
                f'momentum={self.momentum} has no meaning for optimizer="adam", which has its own '
                '(0.9); leave it out, or take optimizer="sgd"'
            )
        return self

    def num_steps(self, samples: int) -> int:
        """Local steps K on a data set of this many samples."""
        return self.steps or (self.epochs or 0) * -(-samples // self.batch_size)

    def rate(self, round: int) -> float:
        """The learning rate of every local step of this round."""
        return self.lr * self.decay ** sum(start <= round for start in self.milestones)


@dataclass(frozen=True)
class State:
    """An algorithm's whole checkpoint: nothing else is carried from round to round."""

    w_P: Tensor  # never changed in place by the next round: it may be yet to be evaluated
    server: Mapping[str, Tensor] = field(default_factory=dict)  # momentum, control variate, ...
    clients: Mapping[int, Tensor] = field(default_factory=dict)  # memory of the clients seen


@dataclass(frozen=True)
class Train:
    """An algorithm's request: these clients train from w_P on g + offset + prox*(w - w_P).

    An offset is a client's own memory and moves nothing; what is sent besides w_P is declared.
    With `mean`, the update's delta_MP has one row, the mean over the clients asked: where a rule
    needs no more, each machine sums what it has trained, and only sums travel.
    """

    w_P: Tensor
    ids: Sequence[int]
    offset_MP: Tensor | None = None
    prox: float = 0.0
    sgd: SGD | None = None  # None: the run's local training
    extra_up: int = 0  # vectors of P parameters a client sends up besides its update
    extra_down: int = 0  # vectors of P parameters a client is sent besides its start
    w_MP: Tensor | None = None  # each client's own start, in place of w_P
    mean: bool = False  # only the mean of the updates is needed

    @classmethod
    def server(cls, w_P: Tensor, sgd: SGD) -> "Train":
        """The server trains on its own data D0."""
        return cls(w_P, [SERVER], sgd=sgd)


class Update(NamedTuple):
    """What comes back: one row per client asked, in the order asked."""

    delta_MP: Tensor  # w_start - w_end: points like a gradient; one row if `Train.mean`
    steps_M: Tensor  # local steps taken
    rate_M: Tensor  # sum of these steps' rates, momentum included: delta / rate is a mean gradient
    #                 (of plain SGD; with momentum or Adam a mean step direction)
    samples_M: Tensor  # samples seen
    loss_M: Tensor  # mean over the samples seen, while training
    accuracy_M: Tensor  # fraction in [0, 1], over the samples seen, while training


Round: TypeAlias = Generator[Train, Update, State]
"""One round of an algorithm: it yields requests, is sent updates, and returns its new state.

Requests are data, so many replicates' rounds run in lock-step and train as one batch.
"""


@dataclass(frozen=True)
class Setting:
    """What an algorithm may know of a run beforehand, to fill in defaults that depend on it."""

    num_clients: int
    client_samples: float  # mean over the clients
    server_samples: int
    local: SGD


class Algorithm(Component):
    """An update rule. Define `round`; `init` if there is more state than the parameters."""

    abstract: ClassVar[bool] = True

    def prepare(self, setting: Setting) -> Self:
        """This algorithm with every default filled in that depends on the run."""
        return self

    @property
    def uses_server_data(self) -> bool:
        """Whether a round may train on the server's data D0."""
        return False

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """The state before round 0."""
        return State(w_P)

    @abstractmethod
    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """One communication round with the cohort `ids`."""


class Participation(Component):
    """A policy: who comes at round `key.round`. It never sees parameters or algorithms."""

    abstract: ClassVar[bool] = True

    def check(self, num_clients: int) -> None:
        """Raise ValueError if the policy cannot serve this many clients."""

    def init(self) -> Any:
        """The policy's state (JSON-like) before round 0."""
        return None

    def note(self, state: Any) -> tuple[float | None, bool]:
        """After `pick`: the probability q of an enforced round, and whether this one was."""
        return None, False

    def measured_on(self, cohort: list[int]) -> list[int] | None:
        """Whose samples the new parameters' accuracy is measured on; None: as the cohort trains."""
        return None

    @abstractmethod
    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, list[int]]:
        """The new state and this round's cohort: distinct client ids, sorted, never empty.

        `accuracy`: training accuracy, of the last cohort or as `measured_on` says (None before).
        """


@dataclass(frozen=True)
class Samples:
    """Inputs and labels in memory; integer inputs stay as they are until a batch is drawn."""

    x: NDArray[Any]  # [n, ...] uint8 or float32; int64 are tokens, which no one scales
    y: NDArray[np.int64]  # [n]
    scale: float = 1.0  # the model sees x * scale + shift
    shift: float = 0.0
    users: NDArray[np.int64] | None = None  # [n] who made each sample, from 0; -1 nobody

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A training set, a test set, and how many classes there are."""

    name: str
    train: Samples
    test: Samples
    num_classes: int
    names: tuple[str, ...] = ()  # of the classes, where they are known
    outside: int = 0  # the last so many training samples are the server's alone


class Split:
    """Which training samples each client and the server hold.

    `clients` reads like a list of arrays; a list that is given is packed into one.
    """

    def __init__(self, clients: Sequence[NDArray[np.int64]], server: NDArray[np.int64]) -> None:
        self.clients, self.server = pack(clients), server

    def of(self, client: int) -> NDArray[np.int64]:
        """The samples of a client, of SERVER, or of EVERYONE: all clients' as one."""
        if client == EVERYONE:
            return self.clients.together()
        return self.server if client == SERVER else self.clients[client]

    def size(self, client: int) -> int:
        """How many these are."""
        if client == EVERYONE:
            return int(self.clients.sizes.sum())
        return len(self.server) if client == SERVER else int(self.clients.sizes[client])


class FederatedData(Component):
    """The data of a run: a dataset and how it is spread. See `raysafl.data.Federation`."""

    abstract: ClassVar[bool] = True
    clients: int = Field(default=10, gt=0)

    @property
    @abstractmethod
    def has_server_data(self) -> bool:
        """Whether the server holds samples of its own."""

    @property
    @abstractmethod
    def source_key(self) -> str:
        """Equal keys load equal datasets."""

    def tested_on(self, count: int) -> Self:
        """The same with at most so many test samples, if it can: for trying things out."""
        return self

    @abstractmethod
    def load(self) -> Dataset:
        """Read the dataset. Raises ValueError naming the folder and files that are missing."""

    def split_seed(self, seed: int) -> int:
        """What of a replicate's seed the split depends on: equal ones, equal splits."""
        return seed

    @abstractmethod
    def split(self, dataset: Dataset, seed: int) -> Split:
        """Spread the training set. Raises ValueError if it does not fit the arguments."""


class Model(Component):
    """A recipe for an `nn.Module`. Define `build` in your own file to bring your own.

    `precision="bfloat16"` computes its layers in bfloat16 where torch's autocast does so:
    about twice as fast for convolutions. Parameters, gradients and averages stay float32.
    """

    abstract: ClassVar[bool] = True
    precision: Literal["float32", "bfloat16"] = "float32"

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
        """A module from [batch, *input_shape] to logits [batch, num_classes]."""


@dataclass(frozen=True)
class Record:
    """One evaluated round of one replicate; the counts are sums since its last record."""

    replicate: int
    seed: int
    round: int
    kind: str  # who trained in this round: "client", "server", "client+server" or "central"
    cohort: list[int]
    test_accuracy: float
    test_loss: float
    train_accuracy: float | None  # of the last cohort, or as the policy asks (`measured_on`)
    train_loss: float | None
    q: float | None  # probability of an enforced (snapshot) round, if the policy has one
    snapshots: int  # enforced rounds
    server_rounds: int
    steps: int
    bytes_down: int
    bytes_up: int
    seconds: float


class Task(NamedTuple):
    """One local training: the unit of compute."""

    replicate: int
    client: int
    w_P: Tensor
    sgd: SGD
    seed: int
    round: int
    call: int  # the how-many-th request of this round, so that no two draw the same batches
    offset_P: Tensor | None
    prox: float
    mean: bool = False  # give the mean over the replicate's tasks in place of this one's row


Scores: TypeAlias = dict[int, tuple[float, float]]
"""Test accuracy and mean loss by replicate."""


class Work(Protocol):
    """What a simulation asks of the machine: in one process, or on Ray actors."""

    def init(self) -> list[Tensor]:
        """The initial parameters w_P of each replicate."""

    def sizes(self) -> list[tuple[list[int], int]]:
        """How many samples each client and the server hold, in each replicate."""

    def train(self, tasks: Sequence[Task]) -> Update:
        """Train all tasks, of any clients and replicates; rows in the order given.

        Tasks with `mean` have one row per replicate in delta_MP, where its first one stands.
        """

    def evaluate(self, w: Mapping[int, Tensor]) -> Callable[[], Scores]:
        """Have each replicate's parameters evaluated; call what is returned for the scores.

        Training may be asked for in between: the scores are those of the parameters given.
        """

    def train_accuracy(
        self, w: Mapping[int, Tensor], ids: Mapping[int, Sequence[int]]
    ) -> dict[int, float]:
        """What share of some clients' training samples each replicate's parameters get right."""
