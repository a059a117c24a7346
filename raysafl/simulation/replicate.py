"""One replicate of a run: where it stands between two rounds, and how it is judged.

A replicate takes its rounds in a group of replicates that are alike
(`raysafl.simulation.replicates`), which holds where they all stand as columns. What is rare,
or differs from one to the other, is here: what a replicate begins with, which of its models
is kept, when it stops, and the record of an evaluated round.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from torch import Tensor

from raysafl.core.algorithm import Algorithm, Setting, State
from raysafl.core.component import users_parts
from raysafl.core.objective import Value
from raysafl.core.record import VIRTUAL_SECONDS, Record
from raysafl.core.work import ClientTests, Ints, Work
from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.run import Patience, Run
from raysafl.simulation.turns import checked_state

if TYPE_CHECKING:
    from raysafl.simulation.replicates import Replicates


@dataclass
class Counts:
    """Who took part, and what a replicate has spent, since its last record.

    Args:
        cohorts: The ids of the clients that took part in each round, oldest first.
        enforced: Whether each of these rounds was enforced.
        trained: Whether clients trained in each of these rounds.
        snapshots: Rounds with an enforced cohort in which clients trained.
        server_rounds: Rounds in which the server trained.
        steps: Local steps, of clients and server.
        bytes_down: Bytes sent to clients.
        bytes_up: Bytes sent by clients.
        virtual_seconds: What the rounds took on the clients' devices, if there are some.
    """

    cohorts: list[list[int]] = field(default_factory=list)
    enforced: list[bool] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    snapshots: int = 0
    server_rounds: int = 0
    steps: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    virtual_seconds: float = 0.0


@dataclass(frozen=True)
class KeptModel:
    """A model of a replicate that the run keeps.

    Args:
        round: The number of the round after which it was taken.
        value: The value by which it was chosen; None if it is the last one.
        w_P: Its parameters [P], float32.
    """

    round: int
    value: float | None
    w_P: Tensor


class Progress(NamedTuple):
    """How far a client is in training that goes on (`ContinuedTraining`).

    Args:
        steps: The number of steps that it has taken.
        hits: How many samples it has classified correctly since its pass began.
        seen: The number of these samples.
        moments: The vectors [P] that it keeps of its optimizer.
    """

    steps: int = 0
    hits: float = 0.0
    seen: int = 0
    moments: tuple[Tensor, ...] = ()


@dataclass
class Standing:
    """Where a replicate stands between two rounds; checkpoints store it.

    Args:
        state: The algorithm's state.
        policy: The participation policy's state.
        round: The number of the next round.
        train_accuracy: The training accuracy that the policy is given next; None before
            any client has trained.
        train_loss: The mean training loss of the last cohort that trained, likewise.
        counts: Who took part, and what was spent, since the last record.
        reached: The clients that have been sent samples of the server; empty unless the
            run shares data.
        progress: How far each client is that has trained, if training goes on.
    """

    state: State
    policy: Any
    round: int = 0
    train_accuracy: float | None = None
    train_loss: float | None = None
    counts: Counts = field(default_factory=Counts)
    reached: set[int] = field(default_factory=set)
    progress: dict[int, Progress] = field(default_factory=dict)


class Replicate:
    """One seed of a run.

    Args:
        run: The run.
        work: What the machine knows of the cells.
        number: The number of the replicate in its run.
        cell: The number of its cell in `work`.

    Attributes:
        seed: The seed of all its randomness.
        algorithm: The algorithm, prepared for the replicate's clients.
        participation: The policy, for the replicate's clients.
        local: How clients train, with what depends on the number of rounds filled in.
        samples: How many samples each client holds; those of EVERYONE (-2) and of
            SERVER (-1) stand at the end.
        diverged: Why the replicate was stopped; empty as long as it was not.
        best: The best value so far of the metric that `Run.patience` watches, if any.
        best_round: The round of that value; -1 before the first.
        stopped: Why the replicate has stopped before the last round, by `Run.patience`;
            empty as long as it has not.
        clients: Who took part how often, and how clients were served; None unless the
            run evaluates clients one by one.
        client_tests: By which test samples the clients are judged, likewise.
        best_model: The best model so far, if the run keeps the best one.
    """

    def __init__(self, run: Run, work: Work, number: int, cell: int) -> None:
        self.run = run
        self.work = work
        self.number = number
        self.cell = cell
        self.seed = run.seed + number
        self.local = run.local.over(run.rounds)
        self.is_users_own = bool(users_parts(run.algorithm, Algorithm))
        self.shared_bytes = work.shared_bytes(cell)
        # The columns by which it keeps a model and stops, and whether they should be high.
        self._higher_is_better = {
            name: run.higher_is_better(name)
            for name in (run.kept_by, run.patience.metric if run.patience else "")
            if name
        }

        sizes, server_size = work.sizes(cell)
        setting = Setting(
            num_clients=len(sizes),
            client_samples=sum(sizes) / len(sizes),
            server_samples=server_size,
            local=self.local,
            rounds=run.rounds,
        )
        w_P = work.init(cell)
        self.algorithm = run.algorithm.prepare(setting)
        self.participation = run.participation.for_clients(
            partial(work.client_names, cell)
        )
        state = checked_state(
            self.algorithm,
            self.algorithm.init(w_P, run.data.clients),
            w_P.numel(),
            None,
        )
        self._standing = Standing(state, self.participation.init())
        # The group in which it takes its rounds, and its place there.
        self._group: Replicates | None = None
        self._place = 0

        self.diverged = ""
        self.best: float | None = None
        self.best_round = -1
        self.stopped = ""
        self.best_model: KeptModel | None = None
        self.clients: ClientHistory | None = None
        self.client_tests: ClientTests | None = None
        if run.eval_clients is not None:
            self.clients = ClientHistory(np.zeros(len(sizes), np.int64))
            self.client_tests = work.client_tests(cell, run.eval_clients.on)

    @property
    def standing(self) -> Standing:
        """Where it stands."""
        if self._group is None:
            return self._standing
        return self._group.columns.standing(self._place, self._group.round)

    @property
    def state(self) -> State:
        """The algorithm's state."""
        return self.standing.state

    @property
    def round(self) -> int:
        """The number of its next round."""
        return self._standing.round if self._group is None else self._group.round

    def join(self, group: "Replicates", place: int) -> None:
        """Take rounds in a group from now on."""
        if self._group is not None:
            self._group.is_left = True
        self._group = group
        self._place = place

    def stand(self, standing: Standing) -> None:
        """Stand somewhere else from now on, and in no group."""
        if self._group is not None:
            self._group.is_left = True
        self._group = None
        self._standing = standing

    @cached_property
    def samples(self) -> Ints:
        """The numbers of samples that clients, EVERYONE and SERVER hold."""
        sizes, server_size = self.work.sizes(self.cell)
        return np.array([*sizes, sum(sizes), server_size])

    @property
    def done(self) -> bool:
        """Whether it takes part in no further round."""
        return self.round >= self.run.rounds or bool(self.diverged or self.stopped)

    def kept(self) -> KeptModel | None:
        """Return the model that the run keeps after its last round, if it keeps one.

        A replicate that has diverged has no last model, but the best one before that.
        """
        if self.run.kept_by:
            return self.best_model
        if self.run.keep == "last" and not self.diverged:
            # An algorithm of the user's own may change those in its state in place.
            w_P = self.state.w_P.float().clone()
            return KeptModel(self.round - 1, None, w_P)
        return None

    def keep_if_best(
        self, scores: Mapping[str, Value | None], round: int, w_P: Tensor
    ) -> None:
        """Keep the model of a round if it is better than all before, and the run wants that.

        Args:
            scores: What was measured of it.
            round: The number of the round.
            w_P: Its parameters.
        """
        column = self.run.kept_by
        value = scores.get(column)
        # A model whose value is NaN is never the best.
        if not isinstance(value, float) or math.isnan(value):
            return
        before = self.best_model
        sign = 1 if self._higher_is_better[column] else -1
        if before is None or before.value is None or sign * (value - before.value) > 0:
            # A view would keep the parameters of the whole group in memory.
            self.best_model = KeptModel(round, value, w_P.clone())

    def stop_without_improvement(
        self, scores: Mapping[str, Value | None], round: int, of_clients: bool = False
    ) -> None:
        """Stop if the metric of `Run.patience` has not improved for too many rounds.

        Args:
            scores: What was measured; of clients, a statistic may not exist, such as that of
                those that have never taken part.
            round: The number of the round.
            of_clients: Whether these are statistics over clients.
        """
        patience: Patience | None = self.run.patience
        if patience is None or patience.is_of_clients != of_clients:
            return
        name = patience.metric
        value = cast("float | None", scores.get(name))
        if value is not None and patience.improves(
            value, self.best, self._higher_is_better[name]
        ):
            self.best = value
            self.best_round = round
        elif round - self.best_round >= patience.rounds:
            since = "the start"
            if self.best is not None:
                since = f"round {self.best_round} ({self.best:.6g})"
            self.stopped = (
                f"stopped after round {round}: {name} has not improved since {since}"
            )

    def record(
        self,
        round: int,
        kind: str,
        counts: Counts,
        enforce_prob: float | None,
        scores: Mapping[str, Value | None],
    ) -> Record:
        """Return the record of an evaluated round.

        Args:
            round: The number of the round.
            kind: Who trained in it.
            counts: Who took part, and what was spent, since the last record.
            enforce_prob: The probability with which the round was enforced, if there is one.
            scores: The training accuracy and loss, and what was measured.
        """
        metrics = dict(scores)
        spent = dict(vars(counts))
        virtual_seconds = spent.pop(VIRTUAL_SECONDS)
        if self.run.devices is not None:
            metrics[VIRTUAL_SECONDS] = virtual_seconds
        return Record(
            replicate=self.number,
            seed=self.seed,
            round=round,
            kind=kind,
            test_accuracy=cast("float | None", metrics.pop("test_accuracy", None)),
            test_loss=cast("float", metrics.pop("test_loss")),
            train_accuracy=cast("float | None", metrics.pop("train_accuracy")),
            train_loss=cast("float | None", metrics.pop("train_loss")),
            enforce_prob=enforce_prob,
            # `Lockstep` fills it in.
            seconds=0.0,
            metrics=cast("dict[str, Value]", metrics),
            **spent,
        )
