"""One replicate of a run, and its rounds.

A round (`Replicate.next_round`) is one generator, which is read from top to bottom:

1. `Participation.pick` chooses the cohort, and `Algorithm.round` is started with it.
2. The algorithm is a generator, too. It yields a request, `Train` or `TrainMean`, which
   becomes a task for each client, and is sent the update. This repeats until it returns
   the new state. If nobody has come, only an algorithm that acts without clients is
   started, and the state of any other stays as it was.
3. If the policy wants it, the training accuracy of the new parameters is measured.
4. A replicate whose parameters are no longer finite has diverged, and stops.
5. If the round is due to be evaluated, the test scores complete its `Record`, which
   becomes a row of the results. A replicate whose scores have not improved for too long
   stops (`Run.patience`).
6. If the run evaluates clients one by one and the round is due for that, what
   `raysafl.simulation.per_client` measures completes the record.

What the machine is to compute, a round yields as a request (`raysafl.core.work`), and it
is sent the answer. It never knows of other replicates. Whoever advances rounds may
merge the requests of many; `raysafl.simulation.simulation.Lockstep` does.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import (
    NOTHING_KEPT,
    Algorithm,
    ContinuedTraining,
    CountSamples,
    MeanUpdate,
    Request,
    Setting,
    TrainMean,
    Update,
)
from raysafl.core.means import relative_weights
from raysafl.core.objective import Value
from raysafl.core.participation import Cohort
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key
from raysafl.core.record import Record
from raysafl.core.users_parts import method_name, users_parts
from raysafl.core.work import (
    TEST,
    VALIDATION,
    ClientTests,
    Evaluation,
    GroupSums,
    PersonalEvaluation,
    Rows,
    Summed,
    Trained,
    Training,
    Work,
    WorkRequest,
)
from raysafl.simulation.checks import (
    checked_ids,
    checked_pick,
    checked_request,
    checked_round,
    checked_state,
    refuse_no_request,
)
from raysafl.simulation.patience import Patience
from raysafl.simulation.per_client import (
    PERSONAL_CALL,
    ClientHistory,
    served_columns,
)
from raysafl.simulation.run import Run
from raysafl.simulation.scores import (
    client_scores,
    rows_of_clients,
    rows_of_each_client,
    scores,
    train_accuracy,
    values_of,
)

LOWER_RATES = "lower the learning rates"
# Parameters are sent as float32.
BYTES_PER_PARAMETER = 4
# Who trained, if it was not a client.
KINDS = {SERVER: "server", EVERYONE: "central"}

RoundOfReplicate: TypeAlias = Generator[WorkRequest, Any, Record | None]
"""One round: yields requests, is sent answers, returns its record if it is evaluated."""


@dataclass
class Counts:
    """Who came to a replicate, and what it has spent, since its last record.

    Args:
        cohorts: The ids of the clients that came in each round, oldest round first.
        enforced: Whether each of these rounds was enforced.
        trained: Whether clients trained in each of these rounds.
        snapshots: Rounds with an enforced cohort in which clients trained.
        server_rounds: Rounds in which the server trained.
        steps: Local steps, of clients and server.
        bytes_down: Bytes sent to clients.
        bytes_up: Bytes sent by clients.
    """

    cohorts: list[list[int]] = field(default_factory=list)
    enforced: list[bool] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    snapshots: int = 0
    server_rounds: int = 0
    steps: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


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
    """How far a client has come in training that goes on (`ContinuedTraining`).

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
class _Round:
    """A round so far.

    Args:
        cohort: Who has come.
        key: The source of the round's randomness.
        calls: The number of requests to train.
        kinds: Who has trained: "client", "server" or "central".
        trained: The clients that have trained, if the run evaluates clients one by one.
        is_finite: Whether all updates were finite; True unless the algorithm is the user's.
    """

    cohort: Cohort
    key: Key
    calls: int = 0
    kinds: set[str] = field(default_factory=set)
    trained: set[int] = field(default_factory=set)
    is_finite: bool = True


class Replicate:
    """One seed of a run between two rounds, and how it proceeds.

    Args:
        run: The run.
        work: What the machine knows of the cells. All that it computes is asked for by
            the requests of `next_round`.
        number: The number of the replicate in its run.
        cell: The number of its cell in `work`.

    Attributes:
        seed: The seed of all its randomness.
        round: The number of its next round.
        algorithm: The algorithm, prepared for the replicate's clients.
        participation: The policy, for the replicate's clients.
        state: The algorithm's state.
        policy: The participation policy's state.
        train_accuracy: The training accuracy that the policy is given next; None before
            any client has trained.
        train_loss: The mean training loss of the last cohort that trained, likewise.
        counts: Who came, and what was spent, since the last record.
        reached: The clients that have been sent samples of the server; empty unless the
            run shares data.
        diverged: Why the replicate was stopped; empty as long as it was not.
        best: The best value so far of the metric that `Run.patience` watches, if any.
        best_round: The round of that value; -1 before the first.
        stopped: Why the replicate has stopped before the last round, by `Run.patience`;
            empty as long as it has not.
        clients: Who came how often, and how the clients were served; None unless the
            run evaluates clients one by one.
        client_tests: By which test samples the clients are judged, likewise.
        best_model: The best model so far, if the run keeps the best one.
        progress: How far each client has come that has trained, if training goes on.
    """

    def __init__(self, run: Run, work: Work, number: int, cell: int) -> None:
        self.run = run
        self.work = work
        self.number = number
        self.cell = cell
        self.seed = run.seed + number
        # How clients train, with what depends on the number of rounds filled in.
        self.local = run.local.over(run.rounds)
        self._is_users_own = bool(users_parts(run.algorithm, Algorithm))
        self._shared_bytes = work.shared_bytes(cell)
        # The rows on which it is evaluated.
        self._rows = [TEST, VALIDATION] if run.data.has_validation else [TEST]
        # The column by which it keeps a model, if any; and whether the columns should be
        # high by which it stops or keeps one.
        self._kept_by = run.kept_by
        self._higher_is_better = {
            name: run.higher_is_better(name)
            for name in (self._kept_by, run.patience.metric if run.patience else "")
            if name
        }

        sizes, server_size = work.sizes(cell)
        sampling = run.participation.sampling(run.data.clients)
        setting = Setting(
            num_clients=len(sizes),
            client_samples=sum(sizes) / len(sizes),
            server_samples=server_size,
            local=self.local,
            rounds=run.rounds,
            cohort=None if sampling is None else sampling.cohort,
        )
        w_P = work.init(cell)
        self.num_parameters = w_P.numel()
        self.algorithm = run.algorithm.prepare(setting)
        self.participation = run.participation.for_clients(
            partial(work.client_names, cell)
        )

        self.round = 0
        self.state = checked_state(
            self.algorithm,
            self.algorithm.init(w_P, run.data.clients),
            self.num_parameters,
            None,
        )
        self.policy: Any = self.participation.init()
        self.train_accuracy: float | None = None
        self.train_loss: float | None = None
        self.counts = Counts()
        self.reached: set[int] = set()
        self.diverged = ""
        self.best: float | None = None
        self.best_round = -1
        self.stopped = ""
        self.best_model: KeptModel | None = None
        self.progress: dict[int, Progress] = {}
        self.clients: ClientHistory | None = None
        self.client_tests: ClientTests | None = None
        if run.eval_clients is not None:
            self.clients = ClientHistory(np.zeros(len(sizes), np.int64))
            self.client_tests = work.client_tests(cell, run.eval_clients.on)

    @property
    def done(self) -> bool:
        """Whether it takes part in no further round."""
        return self.round >= self.run.rounds or bool(self.diverged or self.stopped)

    @property
    def w_P(self) -> Tensor:
        """The present parameters, in float32, which nobody changes in place.

        An algorithm of the user's own may do so with those in its state.
        """
        w_P = self.state.w_P.float()
        return w_P.clone() if self._is_users_own else w_P

    def kept(self) -> KeptModel | None:
        """Return the model that the run keeps after its last round, if it keeps one.

        A replicate that has diverged has no last model, but the best one before that.
        """
        if self._kept_by:
            return self.best_model
        if self.run.keep == "last" and not self.diverged:
            return KeptModel(self.round - 1, None, self.w_P)
        return None

    def next_round(self) -> RoundOfReplicate:
        """Run one round, as the module's docstring describes.

        Returns:
            A generator that yields requests, which name this replicate's cell, and
            returns the record of the round, None if it is not evaluated.
        """
        current = self._pick()
        yield from self._train(current)
        yield from self._measure_accuracy(current)
        self._finish(current)
        record = None
        if self._is_evaluated() and not self.diverged:
            sums = yield from self._sums(self._rows)
            measured = scores(self.work.measures, sums)
            self._keep_if_best(measured)
            self._stop_without_improvement(measured)
            record = self._record(current, measured)
            yield from self._evaluate_clients(record)
        self.round += 1
        return record

    def _sums(
        self, rows: Sequence[Rows]
    ) -> Generator[Evaluation, Summed, dict[Rows, GroupSums]]:
        """Have the present parameters evaluated on named rows."""
        sums = yield Evaluation(self.cell, self.w_P, rows)
        return sums[self.cell]

    def _is_evaluated(self) -> bool:
        rounds = self.round + 1
        return rounds % self.run.eval_every == 0 or rounds == self.run.rounds

    def _pick(self) -> _Round:
        """Let the policy choose who comes."""
        key = Key(self.seed, self.round)
        clients = self.run.data.clients
        picked = self.participation.pick(self.policy, clients, key, self.train_accuracy)
        self.policy, cohort = checked_pick(
            self.participation, picked, clients, self.round
        )
        return _Round(cohort, key)

    def _train(self, current: _Round) -> Generator[Training, dict[int, Trained], None]:
        """Answer the algorithm's requests until it returns its new state."""
        ids = current.cohort.ids
        generator = checked_round(
            self.algorithm,
            self.algorithm.turn(self.state, ids, current.key),
            self.round,
        )
        # A generator is started by sending None.
        answer: Any = None
        while True:
            try:
                request = generator.send(answer)
            except StopIteration as end:
                returned = end.value
                break
            if isinstance(request, CountSamples):
                answer = self._count_samples(request.ids)
            else:
                answer = yield from self._answer(request, current)
        if not current.calls and ids:
            refuse_no_request(self.algorithm, self.round)
        self.state = checked_state(
            self.algorithm, returned, self.num_parameters, self.round, ids
        )

    def _count_samples(self, ids: Sequence[int]) -> Tensor:
        """Return how many training samples some clients hold, [M]."""
        checked_ids(self.algorithm, ids, self.run.data.clients, self.round)
        return self._sizes[list(ids)]

    @cached_property
    def _sizes(self) -> Tensor:
        """The numbers of samples; EVERYONE (-2) and SERVER (-1) are found at the end."""
        sizes, server_size = self.work.sizes(self.cell)
        return torch.tensor([*sizes, sum(sizes), server_size])

    def _answer(
        self, request: Request, current: _Round
    ) -> Generator[Training, dict[int, Trained], Update | MeanUpdate]:
        """Have a request to train carried out, and count what it has cost."""
        clients = self.run.data.clients
        request = checked_request(
            self.algorithm,
            request,
            self.num_parameters,
            clients,
            self.round,
            current.cohort.ids,
        )
        trained = (yield self._training(request, current))[self.cell]
        answer = trained.update
        if isinstance(request, TrainMean) and isinstance(answer, Update):
            answer = MeanUpdate(answer.delta_MP[0], *answer[1:])
        self._count(request, trained)
        if self._is_users_own:
            current.is_finite &= _all_finite(answer[0])
        if self._goes_on(request):
            self._remember(request.ids, answer)
            answer = answer._replace(moments_MVP=NOTHING_KEPT)
        return answer

    def _training(self, request: Request, current: _Round) -> Training:
        """Return what the machine is asked for when an algorithm asks for training."""
        ids = list(request.ids)
        current.calls += 1
        for i in ids:
            current.kinds.add(KINDS.get(i, "client"))
        if self.clients is not None:
            # In centralised training all clients train.
            everyone = EVERYONE in ids
            current.trained |= set(
                range(self.run.data.clients) if everyone else (i for i in ids if i >= 0)
            )
        local = self.local
        if request.local is not None:
            local = request.local.over(self.run.rounds)
        weights = None
        if isinstance(request, TrainMean) and request.weight_M is not None:
            weights = relative_weights(request.weight_M)
        came: list[Progress] = []
        if self._goes_on(request):
            zero_P = torch.zeros_like(request.w_P, dtype=torch.float32)
            newcomer = Progress(moments=(zero_P,) * local.num_moments)
            came = [self.progress.get(i, newcomer) for i in ids]
        return Training(
            cell=self.cell,
            clients=ids,
            w=(request.w_P if request.w_MP is None else request.w_MP).float(),
            local=local,
            seed=self.seed,
            round=self.round,
            call=current.calls,
            offset_MP=None if request.offset_MP is None else request.offset_MP.float(),
            prox=request.prox,
            # If a request names one client, its row is the mean.
            averaged=isinstance(request, TrainMean) and len(ids) > 1,
            weights=weights,
            before=[client.steps for client in came],
            moments=[client.moments for client in came if client.moments],
        )

    def _count(self, request: Request, trained: Trained) -> None:
        """Count steps and traffic, and note the training accuracy and loss.

        Only clients' training moves bytes; training on the server's data leaves the
        training accuracy and loss as they were. A client is sent the server's samples
        that it shares once, in the round in which it first trains.
        """
        counts = self.counts
        counts.steps += trained.steps

        # SERVER and EVERYONE are negative, and move no bytes.
        clients = [i for i in request.ids if i >= 0]
        vector_bytes = request.w_P.numel() * BYTES_PER_PARAMETER
        extra_bytes = vector_bytes * request.extra_up
        update_bytes = vector_bytes
        if request.up_bytes is not None:
            update_bytes = int(request.up_bytes)
        counts.bytes_down += len(clients) * vector_bytes * (1 + request.extra_down)
        counts.bytes_up += len(clients) * (update_bytes + extra_bytes)
        if self._shared_bytes:
            newcomers = set(clients) - self.reached
            counts.bytes_down += len(newcomers) * self._shared_bytes
            self.reached |= newcomers

        if trained.samples:
            share = trained.correct / trained.samples
            # It is NaN if the objective has no accuracy.
            self.train_accuracy = None if math.isnan(share) else share
            self.train_loss = trained.loss / trained.samples

    def _goes_on(self, request: Request) -> bool:
        """Whether clients go on where their last training has ended."""
        return request.local is None and isinstance(self.local, ContinuedTraining)

    def _remember(self, ids: Sequence[int], answer: Update | MeanUpdate) -> None:
        """Note how far clients have come, and what they keep."""
        progress = self.progress
        sizes = self._count_samples(ids).tolist()
        columns = (answer.steps_M, answer.samples_M, answer.accuracy_M)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for m, (i, size, (steps, seen, accuracy)) in enumerate(
            zip(ids, sizes, rows, strict=True)
        ):
            before = progress.get(i, Progress())
            if before.steps % self.local.batches_per_pass(size) == 0:
                before = before._replace(hits=0.0, seen=0)
            progress[i] = Progress(
                before.steps + steps,
                before.hits + accuracy * seen,
                before.seen + seen,
                # A view would keep the whole cohort's tensor in memory.
                tuple(moment_P.clone() for moment_P in answer.moments_MVP[m]),
            )
        if self.participation.goes_by_passes:
            running = [progress[i].hits / progress[i].seen for i in ids]
            self.train_accuracy = sum(running) / len(running)

    def _measure_accuracy(self, current: _Round) -> Generator[Evaluation, Summed, None]:
        """Measure the new parameters' training accuracy, if the policy wants that."""
        ids = self.participation.measured_on(current.cohort.ids)
        if ids:
            rows = Rows("train", tuple(ids))
            sums = yield from self._sums([rows])
            self.train_accuracy = train_accuracy(
                self.work.measures, self.run.objective, sums[rows]
            )

    def _finish(self, current: _Round) -> None:
        """Count the round, and stop if the parameters are not finite."""
        counts = self.counts
        trained = "client" in current.kinds
        counts.cohorts.append(current.cohort.ids)
        counts.enforced.append(current.cohort.enforced)
        counts.trained.append(trained)
        counts.snapshots += current.cohort.enforced and trained
        counts.server_rounds += "server" in current.kinds
        if self.clients is not None:
            self.clients.participations_N[sorted(current.trained)] += 1
        if not _all_finite(self.state.w_P):
            why = f" (last training loss {self.train_loss}); {LOWER_RATES}"
            if self._is_users_own and current.is_finite:
                method = method_name(self.algorithm, Algorithm, "round")
                why = (
                    f", but the updates that {method} was sent are: look there for a "
                    "division by 0, a mean of no rows, a logarithm or a root"
                )
            self.diverged = f"round {self.round}: parameters are not finite{why}"

    def _keep_if_best(self, scores: Mapping[str, Value]) -> None:
        """Keep the model if it is better than all before it, and the run wants that."""
        column = self._kept_by
        value = scores.get(column)
        # A model whose value is NaN is never the best.
        if not isinstance(value, float) or math.isnan(value):
            return
        before = self.best_model
        sign = 1 if self._higher_is_better[column] else -1
        if before is None or before.value is None or sign * (value - before.value) > 0:
            self.best_model = KeptModel(self.round, value, self.w_P)

    def _stop_without_improvement(
        self, scores: Mapping[str, Value], of_clients: bool = False
    ) -> None:
        """Stop if the metric of `Run.patience` has not improved for too many rounds.

        Args:
            scores: What was measured.
            of_clients: Whether these are statistics over clients.
        """
        patience: Patience | None = self.run.patience
        if patience is None or patience.is_of_clients != of_clients:
            return
        name = patience.metric
        if name.startswith("train_"):
            value: float | None = getattr(self, name)
        else:
            # A statistic over clients may not exist, such as that of those that never came.
            value = cast("float | None", scores.get(name))
        if value is not None and patience.improves(
            value, self.best, self._higher_is_better[name]
        ):
            self.best = value
            self.best_round = self.round
        elif self.round - self.best_round >= patience.rounds:
            since = "the start"
            if self.best is not None:
                since = f"round {self.best_round} ({self.best:.6g})"
            self.stopped = (
                f"stopped after round {self.round}: {name} has not improved since "
                f"{since}"
            )

    def _record(self, current: _Round, scores: Mapping[str, Value]) -> Record:
        """Return the record of this round, and count anew from here on."""
        counts = self.counts
        self.counts = Counts()
        metrics = dict(scores)
        return Record(
            replicate=self.number,
            seed=self.seed,
            round=self.round,
            kind="+".join(sorted(current.kinds)) or "nobody",
            test_accuracy=cast("float | None", metrics.pop("test_accuracy", None)),
            test_loss=cast("float", metrics.pop("test_loss")),
            train_accuracy=self.train_accuracy,
            train_loss=self.train_loss,
            enforce_prob=current.cohort.enforce_prob,
            # `Simulation.timed` fills it in.
            seconds=0.0,
            metrics=metrics,
            **vars(counts),
        )

    def _evaluate_clients(self, record: Record) -> Generator[WorkRequest, Any, None]:
        """Complete a record by the evaluation of clients, if the round is due for it.

        The last round of a replicate is always due, also if it stops here.
        """
        asked = self.run.eval_clients
        tests = self.client_tests
        if asked is None or self.clients is None or tests is None:
            return
        if not (asked.is_due(self.round, self.run.rounds) or self.stopped):
            return
        measures = self.work.measures
        metric = self.run.objective.metric
        served = client_scores(
            measures,
            metric,
            tests,
            self.clients.participations_N > 0,
            (yield from self._sums(rows_of_clients(tests))),
        )
        personal_N = None
        if asked.personal_steps:
            training = Training(
                cell=self.cell,
                clients=range(self.run.data.clients),
                w=self.w_P,
                local=self.local.begun_anew(epochs=None, steps=asked.personal_steps),
                seed=self.seed,
                round=self.round,
                call=PERSONAL_CALL,
            )
            sums = yield PersonalEvaluation(training, rows_of_each_client(tests))
            personal_N = values_of(measures, metric, sums[self.cell], tests.tests_N)
        self.clients.add(self.round, served, personal_N)
        columns = served_columns(
            self.run.objective, self.clients.participations_N, served, personal_N
        )
        self._stop_without_improvement(columns, of_clients=True)
        record.metrics = {**record.metrics, **columns}


def _all_finite(w_P: Tensor) -> bool:
    """Return whether every parameter is finite.

    If the sum is finite, every parameter is; summing takes a tenth of the time of
    looking at each. The sum of finite parameters may overflow, and only then each is
    looked at.
    """
    return math.isfinite(float(w_P.sum())) or bool(w_P.isfinite().all())
