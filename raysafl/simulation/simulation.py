"""The rounds of a run, independent of where its tasks are computed.

One round (`Simulation.next_round`) goes as follows, for all replicates (seeds) together:

1. `Participation.pick` chooses each replicate's cohort, and `Algorithm.round` is
   started with it as a generator.
2. Every generator yields a request, `Train` or `TrainMean`. The requests of all
   replicates become one request for `Training`, and each generator is sent its answer.
   This repeats until every generator has returned its replicate's new state. If nobody
   has come and the algorithm asks the cohort to train, its round ends there, and the
   state stays as it was.
3. If the policy wants it, the new parameters' `TrainAccuracy` is measured.
4. Replicates whose parameters are no longer finite are stopped.
5. If the round is due to be evaluated, an `Evaluation` is requested. The test scores
   complete the round's `Record`s, which become rows of the results. A replicate whose
   scores have not improved for too long stops (`Run.stop`).
6. If the run evaluates clients one by one and the round is due for that, what
   `raysafl.simulation.per_client` requests follows, and completes the records.

A round is itself a generator. It yields what the machine is to compute
(`raysafl.core.work`) and is sent the answer. So whoever advances it may merge the
requests of many simulations; `raysafl.simulation.lockstep` does.
"""

import math
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from raysafl.core.algorithm import (
    CountSamples,
    MeanUpdate,
    Request,
    Round,
    Setting,
    State,
    TrainMean,
    Update,
    without_clients,
)
from raysafl.core.means import relative_weights
from raysafl.core.objective import Value
from raysafl.core.participation import Cohort
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key
from raysafl.core.record import Record
from raysafl.core.work import (
    ClientEvaluation,
    Evaluation,
    PersonalEvaluation,
    Scores,
    Task,
    TrainAccuracy,
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
    ClientHistory,
    ReplicateToEvaluate,
    evaluate_clients,
)
from raysafl.simulation.run import Run

# Parameters are sent as float32.
BYTES_PER_PARAMETER = 4
# Who trained, if it was not a client.
KINDS = {SERVER: "server", EVERYONE: "central"}

RoundOfRun: TypeAlias = Generator[WorkRequest, Any, list[Record]]
"""One round of a run: yields requests, is sent answers, returns the round's records."""


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


@dataclass
class Replicate:
    """One seed of a run between two rounds: its state, and what it has spent.

    Args:
        seed: The seed of all its randomness.
        state: The algorithm's state.
        policy: The participation policy's state.
        train_accuracy: The training accuracy that the policy is given next; None before
            any client has trained.
        train_loss: The mean training loss of the last cohort that trained, likewise.
        counts: Who came, and what was spent, since the last record.
        reached: The clients that have been sent samples of the server; empty unless the
            run shares data.
        diverged: Why the replicate was stopped; empty as long as it was not.
        best: The best value so far of the metric that `Run.stop` watches, if any.
        best_round: The round of that value; -1 before the first.
        stopped: Why the replicate has stopped before the last round, by `Run.stop`;
            empty as long as it has not.
        stopped_in: The round in which it stopped; -1 as long as it has not.
        clients: Who came how often, and how the clients were served; None unless the
            run evaluates clients one by one.
        best_model: The best model so far, if the run keeps the best one.
    """

    seed: int
    state: State
    policy: Any
    train_accuracy: float | None = None
    train_loss: float | None = None
    counts: Counts = field(default_factory=Counts)
    reached: set[int] = field(default_factory=set)
    diverged: str = ""
    best: float | None = None
    best_round: int = -1
    stopped: str = ""
    stopped_in: int = -1
    clients: ClientHistory | None = None
    best_model: KeptModel | None = None

    @property
    def ended(self) -> bool:
        """Whether the replicate takes part in no further round."""
        return bool(self.diverged or self.stopped)


@dataclass
class _RoundInProgress:
    """One replicate's round: the algorithm's generator, and its requests so far."""

    generator: Round
    cohort: Cohort
    calls: int = 0
    # Who has trained in this round: "client", "server" or "central".
    kinds: set[str] = field(default_factory=set)
    # The clients that have trained in it, if the run evaluates clients one by one.
    trained: set[int] = field(default_factory=set)


class Simulation:
    """The rounds of a run, with all of its replicates in lock-step.

    The attributes `round` (the number of the next round) and `replicates` are its whole
    state, which checkpoints store. `seconds` is the time that its rounds have taken.

    Args:
        run: The configuration.
        work: The machine that trains and evaluates.
        first_cell: The number of the first replicate's cell in `work`; those of the
            other replicates follow it.

    Example:
        >>> from raysafl.quickstart import BASE
        >>> from raysafl.runtime.in_process import Worker
        >>> run = BASE.replace(rounds=2, replicates=1)
        >>> work = Worker(run.cells, run.data.load(), run.model)
        >>> simulation = Simulation(run, work)
        >>> while not simulation.done:
        ...     (record,) = simulation.step()
        >>> record.round, record.kind, [len(ids) for ids in record.cohorts]
        (1, 'client', [5])
    """

    def __init__(self, run: Run, work: Work, first_cell: int = 0) -> None:
        self.run = run
        self.work = work
        # How clients train, with what depends on the number of rounds filled in.
        self.local = run.local.over(run.rounds)
        # Whether the metric by which replicates stop should be high.
        self._higher_is_better = run.stop is not None and run.higher_is_better(
            run.stop.metric
        )
        self.first_cell = first_cell
        self.round = 0
        # Seconds that were spent on its rounds, and those up to its last records.
        self.seconds = 0.0
        self._recorded_seconds = 0.0
        # Whether the column by which a model is kept should be high.
        self._keeps_highest = bool(run.kept_by) and run.higher_is_better(run.kept_by)
        cells = range(first_cell, first_cell + run.replicates)
        self._shared_bytes = [work.shared_bytes(cell) for cell in cells]
        # The numbers of samples of a replicate's clients, once they are asked for.
        self._sizes: dict[int, Tensor] = {}
        sampling = run.participation.sampling(run.data.clients)
        self.algorithms = []
        self.policies = []
        self.replicates = []
        # How many training and test samples each client has, for each replicate, if the
        # run evaluates clients one by one.
        self.client_sizes: list[tuple[list[int], list[int]]] = []
        for cell, seed in zip(cells, run.seeds, strict=True):
            sizes, server_size = work.sizes(cell)
            setting = Setting(
                num_clients=len(sizes),
                client_samples=sum(sizes) / len(sizes),
                server_samples=server_size,
                local=self.local,
                cohort=None if sampling is None else sampling.cohort,
            )
            algorithm = run.algorithm.prepare(setting)
            w_P = work.init(cell)
            state = algorithm.init(w_P, run.data.clients)
            state = checked_state(algorithm, state, w_P.numel(), "init")
            self.algorithms.append(algorithm)
            policy = run.participation.for_clients(partial(work.client_names, cell))
            self.policies.append(policy)
            replicate = Replicate(seed, state, policy.init())
            if run.eval_clients is not None:
                replicate.clients = ClientHistory(np.zeros(len(sizes), np.int64))
                self.client_sizes.append(work.client_tests(cell, run.eval_clients.on))
            self.replicates.append(replicate)

    @property
    def done(self) -> bool:
        """Whether all rounds have been run, or every replicate has ended before."""
        return self.round >= self.run.rounds or all(r.ended for r in self.replicates)

    def step(self) -> list[Record]:
        """Run one round of every replicate; return its records if it is evaluated."""
        begin = time.monotonic()
        round = self.next_round()
        answer = None
        while True:
            try:
                answer = round.send(answer).carry_out(self.work)
            except StopIteration as end:
                return self.timed(end.value, time.monotonic() - begin)

    def timed(self, records: list[Record], seconds: float) -> list[Record]:
        """Return a round's records with the time since the records before them.

        Args:
            records: What `next_round` has returned.
            seconds: How long the round took. If others shared this time, the part of
                it that counts as this simulation's.
        """
        self.seconds += seconds
        if not records:
            return []
        since_last = self.seconds - self._recorded_seconds
        self._recorded_seconds = self.seconds
        return [replace(record, seconds=since_last) for record in records]

    def next_round(self) -> RoundOfRun:
        """Run one round of every replicate, as the module's docstring describes.

        Returns:
            A generator that yields requests, which name this simulation's cells, and
            returns the records of the round, none if it is not evaluated.
        """
        rounds = self._start_rounds()
        yield from self._train(rounds)
        yield from self._measure_accuracy(rounds)
        for r, in_progress in rounds.items():
            self._finish_round(r, in_progress)
        records = []
        if self._is_evaluated(self.round):
            records = yield from self._evaluate(rounds)
            records = yield from self._evaluate_clients(records)
        self.round += 1
        return records

    def _is_evaluated(self, round: int) -> bool:
        return (round + 1) % self.run.eval_every == 0 or round + 1 == self.run.rounds

    def _start_rounds(self) -> dict[int, _RoundInProgress]:
        """Choose the cohort and start the algorithm's round in each live replicate."""
        rounds = {}
        for r, replicate in enumerate(self.replicates):
            if replicate.ended:
                continue
            policy = self.policies[r]
            key = Key(replicate.seed, self.round)
            num_clients = self.run.data.clients
            picked = policy.pick(
                replicate.policy, num_clients, key, replicate.train_accuracy
            )
            replicate.policy, cohort = checked_pick(
                policy, picked, num_clients, self.round
            )
            algorithm = self.algorithms[r]
            generator = checked_round(
                algorithm, algorithm.round(replicate.state, cohort.ids, key), self.round
            )
            if not cohort.ids:
                generator = without_clients(generator, replicate.state)
            rounds[r] = _RoundInProgress(generator, cohort)
        return rounds

    def _train(
        self, rounds: Mapping[int, _RoundInProgress]
    ) -> Generator[Training, Trained, None]:
        """Answer the requests of all replicates until every round has returned."""
        # A generator is started by sending None.
        answers: dict[int, Update | MeanUpdate | None] = dict.fromkeys(rounds)
        while answers:
            requests: dict[int, Request] = {}
            for r, answer in answers.items():
                try:
                    requests[r] = self._next_request(r, rounds[r].generator, answer)
                except StopIteration as end:
                    self._finish_training(r, end.value, rounds[r])
            answers = {}
            if requests:
                answers = yield from self._answer(requests, rounds)

    def _next_request(
        self, r: int, generator: Round, answer: Update | MeanUpdate | None
    ) -> Request:
        """Send an answer to replicate r's round; return the next request to train.

        Requests to count samples are answered here, as no machine is needed for them.
        """
        request = generator.send(answer)
        while isinstance(request, CountSamples):
            request = generator.send(self._count_samples(r, request.ids))
        return request

    def _count_samples(self, r: int, ids: Sequence[int]) -> Tensor:
        """Return how many training samples some of replicate r's clients hold, [M]."""
        if r not in self._sizes:
            sizes, server_size = self.work.sizes(self.first_cell + r)
            # EVERYONE (-2) and SERVER (-1) are found at the end.
            self._sizes[r] = torch.tensor([*sizes, sum(sizes), server_size])
        checked_ids(self.algorithms[r], ids, self.run.data.clients, self.round)
        return self._sizes[r][list(ids)]

    def _finish_training(
        self, r: int, returned: Any, in_progress: _RoundInProgress
    ) -> None:
        """Take what replicate r's round has returned as its new state."""
        if not in_progress.calls and in_progress.cohort.ids:
            refuse_no_request(self.algorithms[r], self.round)
        replicate = self.replicates[r]
        replicate.state = checked_state(
            self.algorithms[r],
            returned,
            replicate.state.w_P.numel(),
            f"round {self.round}",
        )

    def _answer(
        self, requests: Mapping[int, Request], rounds: Mapping[int, _RoundInProgress]
    ) -> Generator[Training, Trained, dict[int, Update | MeanUpdate | None]]:
        """Have the requests of several replicates carried out as one `Training`."""
        tasks = [
            task
            for r, request in requests.items()
            for task in self._tasks(r, request, rounds[r])
        ]
        # If a request names one client, its row is the mean, so no mean is computed.
        averaged = [
            self.first_cell + r
            for r, request in requests.items()
            if isinstance(request, TrainMean) and len(request.ids) > 1
        ]
        trained = yield Training(tasks, averaged)

        answers: dict[int, Update | MeanUpdate | None] = {}
        for r, request in requests.items():
            answer = trained[self.first_cell + r]
            if isinstance(request, TrainMean) and isinstance(answer, Update):
                answer = MeanUpdate(answer.delta_MP[0], *answer[1:])
            self._count(r, request, answer)
            answers[r] = answer
        return answers

    def _tasks(
        self, r: int, request: Request, in_progress: _RoundInProgress
    ) -> list[Task]:
        """Return one task for each client that replicate r's algorithm asks for."""
        checked_request(
            self.algorithms[r],
            request,
            self.replicates[r].state.w_P.numel(),
            self.run.data.clients,
            self.round,
        )
        count = len(request.ids)
        in_progress.calls += 1
        in_progress.kinds |= {KINDS.get(i, "client") for i in request.ids}
        if self.run.eval_clients is not None:
            in_progress.trained |= self._clients_in(request.ids)

        offsets: Sequence[Tensor | None] = [None] * count
        if request.offset_MP is not None:
            offsets = list(request.offset_MP.float())

        weights = [1.0] * count
        if isinstance(request, TrainMean) and request.weight_M is not None:
            weights = relative_weights(request.weight_M)

        # Tasks that start from the same tensor share it, so that it is sent only once.
        starts = [request.w_P.float()] * count
        if request.w_MP is not None:
            starts = list(request.w_MP.float())

        local = self.local
        if request.local is not None:
            local = request.local.over(self.run.rounds)

        return [
            Task(
                cell=self.first_cell + r,
                client=i,
                w_P=w_P,
                local=local,
                seed=self.replicates[r].seed,
                round=self.round,
                call=in_progress.calls,
                offset_P=offset_P,
                prox=request.prox,
                weight=weight,
                max_norm=request.max_norm,
            )
            for i, w_P, offset_P, weight in zip(
                request.ids, starts, offsets, weights, strict=True
            )
        ]

    def _clients_in(self, ids: Sequence[int]) -> set[int]:
        """Return the clients that train; in centralised training all of them do."""
        if EVERYONE in ids:
            return set(range(self.run.data.clients))
        return {int(i) for i in ids if i >= 0}

    def _count(self, r: int, request: Request, answer: Update | MeanUpdate) -> None:
        """Count steps and traffic, and note the training accuracy and loss.

        Only clients' training moves bytes; training on the server's data leaves the
        training accuracy and loss as they were. A client is sent the server's samples
        that it shares once, in the round in which it first trains.
        """
        replicate = self.replicates[r]
        counts = replicate.counts
        counts.steps += int(answer.steps_M.sum())

        # SERVER and EVERYONE are negative, and move no bytes.
        clients = [i for i in request.ids if i >= 0]
        vector_bytes = request.w_P.numel() * BYTES_PER_PARAMETER
        extra_bytes = vector_bytes * request.extra_up
        update_bytes = vector_bytes
        if request.up_bytes is not None:
            update_bytes = int(request.up_bytes)
        counts.bytes_down += len(clients) * vector_bytes * (1 + request.extra_down)
        counts.bytes_up += len(clients) * (update_bytes + extra_bytes)
        if self._shared_bytes[r]:
            newcomers = set(clients) - replicate.reached
            counts.bytes_down += len(newcomers) * self._shared_bytes[r]
            replicate.reached |= newcomers

        weight_M = answer.samples_M
        if SERVER in request.ids:
            weight_M = weight_M * torch.tensor([i != SERVER for i in request.ids])
        if total := int(weight_M.sum()):
            correct = float((answer.accuracy_M * weight_M).sum())
            # It is NaN if the objective has no accuracy.
            replicate.train_accuracy = None if math.isnan(correct) else correct / total
            replicate.train_loss = float((answer.loss_M * weight_M).sum()) / total

    def _measure_accuracy(
        self, rounds: Mapping[int, _RoundInProgress]
    ) -> Generator[TrainAccuracy, dict[int, float], None]:
        """Measure the new parameters' training accuracy, if the policy wants that."""
        ids = {}
        for r, in_progress in rounds.items():
            clients = self.run.participation.measured_on(in_progress.cohort.ids)
            if clients:
                ids[self.first_cell + r] = clients
        if ids:
            accuracies = yield TrainAccuracy(self._parameters(ids), ids)
            for cell in ids:
                replicate = self.replicates[cell - self.first_cell]
                replicate.train_accuracy = accuracies[cell]

    def _finish_round(self, r: int, in_progress: _RoundInProgress) -> None:
        """Count the round, and stop the replicate if its parameters are not finite."""
        replicate = self.replicates[r]
        counts = replicate.counts
        cohort = in_progress.cohort
        trained = "client" in in_progress.kinds
        counts.cohorts.append(cohort.ids)
        counts.enforced.append(cohort.enforced)
        counts.trained.append(trained)
        counts.snapshots += cohort.enforced and trained
        counts.server_rounds += "server" in in_progress.kinds
        if replicate.clients is not None:
            replicate.clients.participations_N[sorted(in_progress.trained)] += 1
        if not _all_finite(replicate.state.w_P):
            replicate.diverged = (
                f"round {self.round}: parameters are not finite (last training loss "
                f"{replicate.train_loss}); lower the learning rates"
            )

    def _evaluate(
        self, rounds: Mapping[int, _RoundInProgress]
    ) -> Generator[Evaluation, Scores, list[Record]]:
        """Have the live replicates evaluated, and return their records."""
        live = [r for r in rounds if not self.replicates[r].diverged]
        if not live:
            return []
        scores = yield Evaluation(self._parameters(self.first_cell + r for r in live))
        records = []
        for r in live:
            own = scores[self.first_cell + r]
            stop = self.run.stop
            if stop is not None and not stop.is_of_clients:
                self._stop_without_improvement(stop, r, own)
            if self.run.kept_by:
                self._keep_if_best(r, own)
            records.append(self._record(r, rounds[r], own))
        return records

    def _stop_without_improvement(
        self, patience: Patience, r: int, scores: Mapping[str, Value]
    ) -> None:
        """Stop replicate r if its metric has not improved for too many rounds."""
        replicate = self.replicates[r]
        name = patience.metric
        if name.startswith("train_"):
            value: float | None = getattr(replicate, name)
        else:
            # A statistic over clients may not exist, such as that of those that never came.
            value = cast("float | None", scores.get(name))
        if value is not None and patience.improves(
            value, replicate.best, self._higher_is_better
        ):
            replicate.best = value
            replicate.best_round = self.round
        elif self.round - replicate.best_round >= patience.rounds:
            since = "the start"
            if replicate.best is not None:
                since = f"round {replicate.best_round} ({replicate.best:.6g})"
            replicate.stopped_in = self.round
            replicate.stopped = (
                f"stopped after round {self.round}: {name} has not improved since "
                f"{since}"
            )

    def _evaluate_clients(
        self, records: list[Record]
    ) -> Generator[ClientEvaluation | PersonalEvaluation, Any, list[Record]]:
        """Evaluate the clients of recorded replicates, if the round is due for it.

        The last round of a replicate is always due, also if it stops here.
        """
        evaluation = self.run.eval_clients
        if evaluation is None:
            return records
        due = evaluation.is_due(self.round, self.run.rounds)
        live = [
            record.replicate
            for record in records
            if due or self.replicates[record.replicate].stopped
        ]
        if not live:
            return records
        w = self._parameters(self.first_cell + r for r in live)
        judged = []
        for (cell, w_P), r in zip(w.items(), live, strict=True):
            own = self.replicates[r]
            assert own.clients is not None
            judged.append(ReplicateToEvaluate(cell, own.seed, w_P, own.clients))
        found = yield from evaluate_clients(
            evaluation,
            self.run.objective,
            self.run.quality.higher_is_better,
            self.local,
            self.round,
            judged,
        )
        completed = []
        for record in records:
            served = found.get(self.first_cell + record.replicate, {})
            if self.run.stop is not None and self.run.stop.is_of_clients:
                self._stop_without_improvement(self.run.stop, record.replicate, served)
            completed.append(replace(record, metrics={**record.metrics, **served}))
        return completed

    def _keep_if_best(self, r: int, scores: Mapping[str, Value]) -> None:
        """Keep replicate r's model if it is better than all before it."""
        column = self.run.kept_by
        value = scores[column]
        # A model whose value is NaN is never the best.
        if not isinstance(value, float) or math.isnan(value):
            return
        replicate = self.replicates[r]
        before = replicate.best_model
        sign = 1 if self._keeps_highest else -1
        if before is None or before.value is None or sign * (value - before.value) > 0:
            w_P = replicate.state.w_P.float().clone()
            replicate.best_model = KeptModel(self.round, value, w_P)

    def kept(self) -> dict[int, KeptModel]:
        """Return the models that the run keeps after its last round, by replicate.

        A replicate that has diverged has no last model, but the best one before that.
        """
        found: dict[int, KeptModel] = {}
        for r, replicate in enumerate(self.replicates):
            if self.run.kept_by and replicate.best_model is not None:
                found[r] = replicate.best_model
            elif self.run.keep == "last" and not replicate.diverged:
                last = self.round - 1
                if replicate.stopped:
                    last = replicate.stopped_in
                found[r] = KeptModel(last, None, replicate.state.w_P.float())
        return found

    def _record(
        self, r: int, in_progress: _RoundInProgress, scores: Mapping[str, Value]
    ) -> Record:
        """Return replicate r's record of this round, and count anew from here on."""
        replicate = self.replicates[r]
        counts = replicate.counts
        replicate.counts = Counts()
        metrics = dict(scores)
        return Record(
            replicate=r,
            seed=replicate.seed,
            round=self.round,
            kind="+".join(sorted(in_progress.kinds)) or "nobody",
            test_accuracy=cast("float | None", metrics.pop("test_accuracy", None)),
            test_loss=cast("float", metrics.pop("test_loss")),
            train_accuracy=replicate.train_accuracy,
            train_loss=replicate.train_loss,
            enforce_prob=in_progress.cohort.enforce_prob,
            # `timed` fills it in.
            seconds=0.0,
            metrics=metrics,
            **vars(counts),
        )

    def _parameters(self, cells: Iterable[int]) -> dict[int, Tensor]:
        """Return the present parameters of some cells, in float32."""
        return {
            cell: self.replicates[cell - self.first_cell].state.w_P.float()
            for cell in cells
        }


def _all_finite(w_P: Tensor) -> bool:
    """Return whether every parameter is finite.

    If the sum is finite, every parameter is; summing takes a tenth of the time of
    looking at each. The sum of finite parameters may overflow, and only then each is
    looked at.
    """
    return math.isfinite(float(w_P.sum())) or bool(w_P.isfinite().all())
