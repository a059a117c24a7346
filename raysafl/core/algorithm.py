"""What an algorithm is: its state, its requests for local training, and their answers.

One round, seen from an algorithm:

1. The simulation starts `Algorithm.round(state, ids, key)`, a generator, with the ids
   of this round's cohort (see `raysafl.core.participation`).
2. The generator yields a request: `Train` for one update per client, or `TrainMean`
   where the mean of the updates is enough. A request is data. It names the clients and
   the parameters they start from, and does not say where they train.
3. The simulation has the request carried out (see `raysafl.core.work`) and sends the
   answer back into the generator: an `Update` or a `MeanUpdate`.
4. The generator may yield further requests (to the server, say), and returns the new
   `State`.

Because requests are data, the simulation can collect those of all replicates (seeds) of
a run and have them trained as one batch.
"""

from abc import abstractmethod
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    NoReturn,
    Self,
    TypeAlias,
    TypeVar,
)

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, SerializeAsAny, model_validator
from torch import Tensor

from raysafl.core.component import Component
from raysafl.core.participation import Participation
from raysafl.core.problem import SERVER
from raysafl.core.randomness import Key
from raysafl.core.rates import RateSchedule

# A number, or an array of numbers.
Count = TypeVar("Count", int, NDArray[np.int64])
# What clients keep of their optimizers, where they keep nothing.
NOTHING_KEPT = torch.empty(0, 0, 0)


class LocalTraining(Component):
    """How a client (or the server) trains on its own data: optimizer and settings.

    Each local step draws a mini-batch and follows the direction

        d = g + offset + prox * (w - w_start) + weight_decay * w,

    where g is the mini-batch gradient, and offset and prox come from the algorithm's
    request. With `clip_norm`, a longer g is first scaled down to that L2 norm, as by
    `torch.nn.utils.clip_grad_norm_`: g is clipped alone, before the other terms are
    added and before momentum.

    With `optimizer="sgd"`, v <- momentum * v + d and w <- w - lr * v; with "adam", d
    goes through Adam with torch's constants (betas 0.9 and 0.999, eps 1e-8). Both equal
    `torch.optim`. Momentum and Adam's moments start at zero in every round and at every
    client, and are not sent. The papers leave this open; it is the usual choice. With
    `ContinuedTraining` each client keeps them.

    The learning rate of round t, counted from 0, is

        lr * schedule.factor(t),

    or lr if there is no `schedule`. For example, `schedule=CosineRate()` lets it fall
    along a cosine over the rounds of the run, and `StepRate(milestones=[5000])` halves
    it from round 5,000 on.

    Raises:
        ValueError: Not exactly one of `epochs` and `steps` is given, or `momentum` is
            given for Adam.

    Example:
        >>> from raysafl.core.rates import StepRate
        >>> steps = StepRate(milestones=[10])
        >>> local = LocalTraining(lr=0.1, batch_size=32, epochs=2, schedule=steps)
        >>> local.num_steps(samples=100)  # 4 mini-batches a pass, 2 passes
        8
        >>> local.rate(9), local.rate(10)
        (0.1, 0.05)
    """

    lr: float = Field(
        gt=0, description="learning rate of a local step, before its schedule"
    )
    batch_size: int = Field(gt=0, description="samples per mini-batch")
    epochs: int | None = Field(
        default=None,
        gt=0,
        description="passes over the client's data, reshuffled for each pass; the last "
        "mini-batch of a pass may be smaller (give this or `steps`)",
    )
    steps: int | None = Field(
        default=None,
        gt=0,
        description="number of mini-batches; where the data end, a new pass begins "
        "(give this or `epochs`)",
    )
    optimizer: Literal["sgd", "adam"] = Field(
        default="sgd", description="the rule of a local step, as in torch.optim"
    )
    momentum: float = Field(
        default=0.0, ge=0, lt=1, description="momentum of SGD, from 0 to 1"
    )
    weight_decay: float = Field(
        default=0.0, ge=0, description="weight of the L2 term, added to the gradient"
    )
    schedule: SerializeAsAny[RateSchedule] | None = Field(
        default=None,
        description="how the learning rate changes over the rounds, such as "
        "CosineRate(); None: it stays",
    )
    clip_norm: float | None = Field(
        default=None,
        gt=0,
        description="largest L2 norm of the gradient of a local step; None: no limit",
    )

    @model_validator(mode="after")
    def _fits(self) -> "LocalTraining":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give epochs=... or steps=..., exactly one of them")
        if self.optimizer == "adam" and self.momentum:
            raise ValueError(
                f'momentum={self.momentum} has no meaning for optimizer="adam", which '
                'has its own (0.9); leave it out, or take optimizer="sgd"'
            )
        return self

    @property
    def num_moments(self) -> int:
        """The number of vectors [P] that a client keeps of its optimizer."""
        return 0

    def batches_per_pass(self, samples: Count) -> Count:
        """Return the number of mini-batches of one pass; the last one may be short."""
        return -(-samples // self.batch_size)

    def num_steps(self, samples: Count, before: Count | int = 0) -> Count | int:
        """Return the number K of local steps on a dataset with this many samples.

        Args:
            samples: The number of samples, or an array of such numbers.
            before: The number of steps that the client has taken in earlier rounds,
                which matters to `ContinuedTraining` alone.
        """
        return self.steps or (self.epochs or 0) * self.batches_per_pass(samples)

    def begun_anew(self, **changes: Any) -> "LocalTraining":
        """Return this training, with some changes, as one that keeps nothing."""
        own = {name: getattr(self, name) for name in LocalTraining.model_fields}
        return LocalTraining(**own | changes)

    def rate(self, round: int) -> float:
        """Return the learning rate of every local step of a round, counted from 0.

        Raises:
            ValueError: The schedule depends on the run's number of rounds; see `over`.
        """
        if self.schedule is None:
            return self.lr
        return self.lr * self.schedule.factor(round)

    def over(self, rounds: int) -> Self:
        """Return this training for a run of that many rounds; see `RateSchedule.over`."""
        if self.schedule is None:
            return self
        schedule = self.schedule.over(rounds)
        return self if schedule is self.schedule else self.replace(schedule=schedule)

    def check(self, rounds: int) -> None:
        """Check the learning rates of a run of that many rounds.

        Raises:
            ValueError: The learning rate of the first or the last round is not above 0.
        """
        local = self.over(rounds)
        for round in (0, rounds - 1) if self.schedule is not None else ():
            if not local.rate(round) > 0:
                raise ValueError(
                    f"the learning rate of round {round} is {local.rate(round)}, so "
                    f"that nothing would be learnt; change schedule={self.schedule!r}, "
                    f"or the {rounds} rounds of the run"
                )


class ContinuedTraining(LocalTraining):
    """Local training that a client continues in its next round.

    With `steps` = K, a client goes through its data pass by pass, whatever the rounds.
    A pass over n samples is cut into S = ceil(n / batch_size) mini-batches. A client
    that has taken k steps so far takes

        min(K, S - k mod S)

    steps more: it stops where its pass ends, also before its K-th step, and begins a
    new pass in the next round in which it participates. With `epochs`, each round has
    whole passes, as in `LocalTraining`.

    With `keep_optimizer`, the momentum v, or Adam's moments and its number of steps, are
    those with which the client's last training ended. They are the client's own memory
    and move no bytes.

    It can be the `local` of a run, and nothing else: what the server trains with, and
    any other training that an algorithm asks for, begins anew.

    Source: the code of FAST (docs/papers.md#fast), with one optimizer object and one
    data loader for each client, which no round resets.

    Raises:
        ValueError: There is no optimizer to keep, because it is SGD without momentum.

    Example:
        >>> local = ContinuedTraining(lr=0.1, batch_size=32, steps=3, momentum=0.9)
        >>> before = [0, 3, 4, 7]  # 4 mini-batches a pass
        >>> [local.num_steps(samples=100, before=k) for k in before]
        [3, 1, 3, 1]
    """

    keep_optimizer: bool = Field(
        default=True,
        description="whether a client keeps its momentum, or Adam's moments, from one "
        "round in which it participates to the next",
    )
    shuffle: bool = Field(
        default=True,
        description="whether each pass has an order of its own; otherwise each has the "
        "order in which the partition gave the client its samples",
    )

    @model_validator(mode="after")
    def _keeps_something(self) -> "ContinuedTraining":
        if self.keep_optimizer and not self.num_moments:
            raise ValueError(
                "SGD without momentum has nothing to keep from round to round; give "
                'momentum=... or optimizer="adam", or say keep_optimizer=False'
            )
        return self

    @property
    def num_moments(self) -> int:
        """The number of vectors [P] that a client keeps of its optimizer."""
        buffers = 2 if self.optimizer == "adam" else int(self.momentum > 0)
        return buffers if self.keep_optimizer else 0

    def num_steps(self, samples: Count, before: Count | int = 0) -> Count | int:
        """Return the number of local steps of one round, as the class describes."""
        if self.steps is None:
            return super().num_steps(samples)
        batches = self.batches_per_pass(samples)
        left = batches - before % batches
        # The lesser one, also of arrays.
        return left - (left > self.steps) * (left - self.steps)


def by_steps(local: LocalTraining) -> Hashable:
    """Return by what local trainings differ in `num_steps` and in the size of batches."""
    return type(local), local.batch_size, local.epochs, local.steps


class CohortIds:
    """The ids of cohorts that are kept otherwise than in a list."""

    @abstractmethod
    def as_index(self) -> Tensor:
        """Return the ids as a tensor; see `index_of`."""


def index_of(ids: Sequence[int]) -> Tensor:
    """Return the ids of a cohort as a tensor [M], by which a tensor [N] is indexed.

    Example:
        >>> weight_N = torch.ones(5)
        >>> weight_N[index_of([1, 3])]
        tensor([1., 1.])
    """
    if isinstance(ids, CohortIds):
        return ids.as_index()
    return torch.tensor(ids, dtype=torch.int64)


class ClientVectors(Mapping[int, Tensor]):
    """Vectors of clients that are kept otherwise than in a dictionary."""

    @abstractmethod
    def recall(self, ids: Sequence[int]) -> Tensor:
        """Return the vectors of some clients; see `State.recall`."""

    @abstractmethod
    def remember(self, ids: Sequence[int], row_MP: Tensor) -> Self:
        """Return these vectors with others for some clients; see `State.remember`."""


@dataclass(frozen=True)
class State:
    """Everything that an algorithm carries from one round to the next.

    Checkpoints store it, with its dictionaries in their order, so a run that is
    interrupted continues from it.

    Args:
        w_P: The global model's parameters.
        server: Named tensors that the server keeps: momentum, a control variate and so
            on.
        clients: One vector [P] for each client that has taken part and has memory.
            `recall` and `remember` read and write it. Numbers below 0 are the vectors of an
            algorithm that is around another one.
    """

    w_P: Tensor
    server: Mapping[str, Tensor] = field(default_factory=dict)
    clients: Mapping[int, Tensor] = field(default_factory=dict)

    def recall(self, ids: Sequence[int]) -> Tensor:
        """Return the vectors of some clients, [M, P]; zeros for clients without one."""
        if isinstance(self.clients, ClientVectors):
            return self.clients.recall(ids)
        zero_P = torch.zeros_like(self.w_P)
        rows = [self.clients.get(i, zero_P) for i in ids]
        return torch.stack(rows) if rows else zero_P.new_empty(0, len(zero_P))

    def remember(self, ids: Sequence[int], row_MP: Tensor) -> Mapping[int, Tensor]:
        """Return `clients` with the vectors [M, P] of some clients replaced.

        The state itself stays as it is.
        """
        if isinstance(self.clients, ClientVectors):
            return self.clients.remember(ids, row_MP)
        # Rows are copied, because a view would keep the whole cohort's tensor in memory.
        rows = {i: row_P.clone() for i, row_P in zip(ids, row_MP, strict=True)}
        return {**self.clients, **rows}


@dataclass(frozen=True)
class Request:
    """What an algorithm asks for: local training of some clients from given parameters.

    Algorithms yield one of the two kinds, `Train`, where the arguments are described, or
    `TrainMean`.

    Raises:
        ValueError: `up_bytes` is no whole number, or is negative.
    """

    w_P: Tensor
    ids: Sequence[int]
    offset_MP: Tensor | None = None
    prox: float = 0.0
    local: LocalTraining | None = None
    extra_up: int = 0
    extra_down: int = 0
    w_MP: Tensor | None = None
    up_bytes: int | None = None

    # A type checker still knows which attributes there are.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say where the answer is, to whoever looks for it in the request itself."""
            raise AttributeError(
                f"a request has no '{name}': its answer is what `yield` gives, as in "
                f"update = yield fl.{type(self).__name__}(...)"
            )

    def __post_init__(self) -> None:
        if self.up_bytes is None:
            return
        if not isinstance(self.up_bytes, Integral) or self.up_bytes < 0:
            raise ValueError(
                f"up_bytes={self.up_bytes!r} is not the number of bytes of an update: "
                "give a whole number of at least 0, or leave it out for 4 bytes a "
                "parameter"
            )


@dataclass(frozen=True)
class Train(Request):
    """A request that is answered by an `Update`: one row for each client.

    Each client i starts from w_P and follows g + offset_i + prox * (w - w_start), see
    `LocalTraining`.

    Args:
        w_P: The parameters [P] that all of the clients start from.
        ids: The M clients to train: ids of the cohort, SERVER (the server's data D0) or
            EVERYONE (the union of all clients' data).
        offset_MP: A vector for each client, [M, P], added to its gradients: a step goes
            against it. It counts as the client's own memory: no traffic is recorded for
            it unless it is declared below.
        prox: Weight of the pull towards the start (mu in FedProx), at least 0.
        local: The local training; None means the run's own.
        extra_up: Number of vectors [P] that each client sends besides its update.
        extra_down: Number of vectors [P] that each client is sent besides its start.
        w_MP: A start for each client, [M, P], used in place of w_P.
        up_bytes: The bytes of one client's update as it is sent, for updates that are
            compressed or sparse; None means 4 for each of the P parameters. It is used
            for the count of traffic alone.
    """

    @classmethod
    def server(cls, w_P: Tensor, local: LocalTraining) -> "Train":
        """Return the request that the server train on its own data D0."""
        return cls(w_P, [SERVER], local=local)


@dataclass(frozen=True)
class TrainMean(Request):
    """A request that is answered by a `MeanUpdate`: one mean over all clients.

    Use it if the algorithm needs only the mean of the updates. Each machine then sums
    the updates that it has trained, and only sums travel. The mean does not depend on
    the number of machines, bit for bit (see `raysafl.runtime.exact_mean`).

    Args:
        weight_M: A weight for each client, at least 0 and not all 0. The mean is then
            sum_i(weight_i Delta_i) / sum_i(weight_i); None weighs all clients alike. All
            other arguments are those of `Train`.
    """

    weight_M: Tensor | None = None


@dataclass(frozen=True)
class AskLosses(TrainMean):
    """A request for the mean losses of clients, each of which sends its loss and no update.

    Of the answer, a `MeanUpdate`, only the losses count. A client that was only asked for
    its loss has not trained in the round.
    """

    # A loss is sent as float32.
    up_bytes: int | None = 4


@dataclass(frozen=True)
class CountSamples:
    """A request for the numbers of training samples that clients hold.

    It is answered by an int64 tensor [M], in the order of the ids, and costs neither
    training nor traffic.

    Args:
        ids: Ids of clients, or SERVER or EVERYONE.
    """

    ids: Sequence[int]


class Update(NamedTuple):
    """The answer to `Train`: one row for each client, in the order of the ids.

    Args:
        delta_MP: w_start - w_end of each client, as it arrived at the server: it points
            like a gradient.
        steps_M: The number of local steps that each client took.
        rate_M: The sum of the learning rates of these steps. With momentum, each step
            counts as the number of plain steps that it amounts to (see `plain_steps` in
            `raysafl.training.optimizer`). For plain SGD, delta / rate is the mean of
            the gradients; for momentum and Adam it is a mean step direction.
        samples_M: The number of training samples seen, counting repetitions.
        loss_M: The mean loss of the samples seen, while training.
        accuracy_M: The share of the samples seen that was classified correctly; NaN if
            the objective has no accuracy.
        moments_MVP: The V vectors that each client keeps of its optimizer. They are for
            the simulation; an algorithm finds none.
    """

    delta_MP: Tensor
    steps_M: Tensor
    rate_M: Tensor
    samples_M: Tensor
    loss_M: Tensor
    accuracy_M: Tensor
    moments_MVP: Tensor = NOTHING_KEPT

    @property
    def own_MP(self) -> Tensor:
        """The update that each client computed, of which the client itself may make use.

        `delta_MP` is what arrived at the server. They differ if clients compress.
        """
        return self.delta_MP


class MeanUpdate(NamedTuple):
    """The answer to `TrainMean`: the mean of the clients' updates.

    Args:
        delta_P: The mean over the clients of w_start - w_end.
        steps_M: The following fields are those of `Update`: one number for each client.
        rate_M: See `Update`.
        samples_M: See `Update`.
        loss_M: See `Update`.
        accuracy_M: See `Update`.
        moments_MVP: See `Update`.
    """

    delta_P: Tensor
    steps_M: Tensor
    rate_M: Tensor
    samples_M: Tensor
    loss_M: Tensor
    accuracy_M: Tensor
    moments_MVP: Tensor = NOTHING_KEPT


Round: TypeAlias = Generator[Request | CountSamples, Any, State]
"""One round of an algorithm: yields requests, is sent answers, returns a new state.

The answer to `Train` is an `Update`, that to `TrainMean` a `MeanUpdate`, and that to
`CountSamples` a tensor; Python's type of a generator cannot say so. Write the answer's
type where the round yields: `update: Update = yield Train(...)`.
"""


@dataclass(frozen=True)
class Setting:
    """What an algorithm may know of a run beforehand, for defaults that depend on it.

    Args:
        num_clients: The number N of all clients.
        client_samples: The mean number of training samples over the clients.
        server_samples: The number n_0 of samples that the server holds.
        local: The run's local training.
        rounds: The number of all rounds of the run. (`key.round` is that of the present
            one.)
    """

    num_clients: int
    client_samples: float
    server_samples: int
    local: LocalTraining
    rounds: int = 1


class Algorithm(Component):
    """A rule by which the server makes new global parameters from clients' updates.

    Define `round`; define `init` too if there is more state than the parameters. An
    algorithm must keep nothing in itself between rounds: all of it belongs in `State`.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> class HalfStep(Algorithm):
        ...     def round(self, state, ids, key):
        ...         update: MeanUpdate = yield TrainMean(state.w_P, ids)
        ...         return replace(state, w_P=state.w_P - 0.5 * update.delta_P)
        >>> algorithm = HalfStep()
        >>> round = algorithm.round(State(torch.ones(2)), [3, 4], Key(seed=0))
        >>> next(round).ids
        [3, 4]
        >>> one_M = torch.ones(2)
        >>> try:
        ...     round.send(MeanUpdate(torch.tensor([1.0, 2.0]), *[one_M] * 5))
        ... except StopIteration as end:
        ...     end.value.w_P
        tensor([0.5000, 0.0000])
    """

    abstract: ClassVar[bool] = True
    _memory: ClassVar[str] = (
        "What an algorithm remembers belongs in the State that `round` returns, as "
        "replace(state, server={**state.server, 'v': ...}), where v is a tensor; of each "
        "client, as clients=state.remember(ids, row_MP), a vector [P] each"
    )
    # Whether the state holds a vector for each client that has participated. The memory
    # that a run needs is estimated by it.
    remembers_clients: ClassVar[bool] = False
    # Whether `round` is called without participants. If not, the state stays as it was.
    acts_without_clients: ClassVar[bool] = False

    def check(self, participation: Participation, num_clients: int) -> None:
        """Raise a ValueError if the algorithm cannot run under this policy."""

    def prepare(self, setting: Setting) -> Self:
        """Return this algorithm with what depends on the run, before its first round.

        An algorithm that needs the number of rounds, for example, has a field for it, and
        returns `self.replace(rounds=setting.rounds)`.
        """
        return self

    @property
    def uses_server_data(self) -> bool:
        """Whether a round may train on the server's data D0."""
        return False

    def init(self, w_P: Tensor, num_clients: int) -> State:
        """Return the state before round 0, for the initial parameters w_P."""
        return State(w_P)

    @abstractmethod
    def round(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Carry out one communication round, as the module's docstring describes.

        Args:
            state: The state after the round before.
            ids: The cohort: distinct client ids in ascending order. It is never empty,
                unless the class says `acts_without_clients = True`: then it may be empty,
                and no client can be asked to train.
            key: The source of randomness for this seed and round.

        Returns:
            A generator that yields requests and returns the new state.
        """

    def turn(self, state: State, ids: Sequence[int], key: Key) -> Round:
        """Return the `round`; for an empty cohort, one that keeps the state if it must.

        An algorithm around another one carries out `inner.turn(state, ids, key)`.
        """
        if ids or self.acts_without_clients:
            return self.round(state, ids, key)
        return _kept(state)


def _kept(state: State) -> Round:
    """A round that asks for nothing, and keeps the state."""
    yield from ()
    return state
