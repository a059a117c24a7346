"""The vocabulary of the package: what an algorithm asks for, and what comes back.

Suffixes name axes: _P flat model parameters, _M this round's cohort, _T local-training
tasks, _R replicates (seeds) of one run.
"""

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from raysafl.core.component import Component
from raysafl.core.problem import SERVER
from raysafl.core.randomness import Key as Key


class LocalTraining(Component):
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

    kind: ClassVar[str] = "SGD"
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
    def _fits(self) -> "LocalTraining":
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
    sgd: LocalTraining | None = None  # None: the run's local training
    extra_up: int = 0  # vectors of P parameters a client sends up besides its update
    extra_down: int = 0  # vectors of P parameters a client is sent besides its start
    w_MP: Tensor | None = None  # each client's own start, in place of w_P
    mean: bool = False  # only the mean of the updates is needed

    @classmethod
    def server(cls, w_P: Tensor, sgd: LocalTraining) -> "Train":
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
    local: LocalTraining


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


"""Test accuracy and mean loss by replicate."""
