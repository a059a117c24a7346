"""The rounds of a run, independent of where its tasks are computed.

One round (`Simulation.advance`) goes as follows, for all replicates (seeds) together:

1. `Participation.pick` chooses each replicate's cohort, and `Algorithm.round` is
   started with it as a generator.
2. Every generator yields a request, `Train` or `TrainMean`. The requests of all
   replicates become one batch of tasks, `Work.train` carries it out, and each generator
   is sent its answer. This repeats until every generator has returned its replicate's
   new state.
3. Replicates whose parameters are no longer finite are stopped.
4. If the round is due to be evaluated, `Work.evaluate` begins to evaluate the new
   parameters. Their test scores complete the round's `Record`s, which become rows of
   the results.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysafl.core.algorithm import (
    MeanUpdate,
    Request,
    Round,
    Setting,
    State,
    TrainMean,
    Update,
)
from raysafl.core.participation import Cohort
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key
from raysafl.core.record import Record
from raysafl.core.work import Scores, Task, Work
from raysafl.simulation.checks import (
    checked_pick,
    checked_request,
    checked_round,
    checked_state,
    refuse_no_request,
)
from raysafl.simulation.run import Run

# Parameters are sent as float32.
BYTES_PER_PARAMETER = 4
# Who trained, if it was not a client.
KINDS = {SERVER: "server", EVERYONE: "central"}


@dataclass
class Counts:
    """What a replicate has spent since its last record.

    Args:
        snapshots: Rounds with an enforced cohort in which clients trained.
        server_rounds: Rounds in which the server trained.
        steps: Local steps, of clients and server.
        bytes_down: Bytes sent to clients.
        bytes_up: Bytes sent by clients.
    """

    snapshots: int = 0
    server_rounds: int = 0
    steps: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


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
        counts: What was spent since the last record.
        reached: The clients that have been sent samples of the server; empty unless the
            run shares data.
        diverged: Why the replicate was stopped; empty as long as it was not.
    """

    seed: int
    state: State
    policy: Any
    train_accuracy: float | None = None
    train_loss: float | None = None
    counts: Counts = field(default_factory=Counts)
    reached: set[int] = field(default_factory=set)
    diverged: str = ""


@dataclass
class _RoundInProgress:
    """One replicate's round: the algorithm's generator, and its requests so far."""

    generator: Round
    cohort: Cohort
    calls: int = 0
    # Who has trained in this round: "client", "server" or "central".
    kinds: set[str] = field(default_factory=set)


class _PendingEvaluation(NamedTuple):
    """An evaluation that has begun, and the records that still lack its scores."""

    round: int
    scores: Callable[[], Scores]
    drafts: list[Record]


class Simulation:
    """The rounds of a run, with all of its replicates in lock-step.

    The attributes `round` (the number of the next round) and `replicates` are its whole
    state. `advance` runs a round without waiting for its evaluation, which goes on
    beside the next round; `step` waits. Before a checkpoint, `finish_evaluations` must
    have been called, since a checkpoint holds no records.

    Args:
        run: The configuration.
        work: The machine that trains and evaluates.

    Example:
        >>> from raysafl.quickstart import BASE
        >>> from raysafl.runtime.in_process import Worker
        >>> run = BASE.replace(rounds=2, replicates=1)
        >>> work = Worker(run.data, run.data.load(), run.model, run.seeds)
        >>> simulation = Simulation(run, work)
        >>> while not simulation.done:
        ...     (record,) = simulation.step()
        >>> record.round, record.kind, len(record.cohort)
        (1, 'client', 5)
    """

    def __init__(self, run: Run, work: Work) -> None:
        self.run = run
        self.work = work
        self.round = 0
        self._last_record_time = time.monotonic()
        # In the order of their rounds.
        self._pending: list[_PendingEvaluation] = []
        # Records with scores that have not been returned yet.
        self._complete: list[Record] = []
        self.algorithms = [
            run.algorithm.prepare(
                Setting(len(sizes), sum(sizes) / len(sizes), server_size, run.local)
            )
            for sizes, server_size in work.sizes()
        ]
        self._shared_bytes = work.shared_bytes()
        self.replicates = [
            Replicate(
                seed,
                checked_state(
                    algorithm,
                    algorithm.init(w_P, run.data.clients),
                    w_P.numel(),
                    "init",
                ),
                run.participation.init(),
            )
            for seed, algorithm, w_P in zip(
                run.seeds, self.algorithms, work.init(), strict=True
            )
        ]

    @property
    def done(self) -> bool:
        """Whether all rounds have been run, or every replicate has diverged."""
        return self.round >= self.run.rounds or all(r.diverged for r in self.replicates)

    @property
    def nothing_pending(self) -> bool:
        """Whether every record was returned, so that none waits for its evaluation."""
        return not self._pending and not self._complete

    @property
    def last_round_evaluated(self) -> bool:
        """Whether the last round that was run is one that is evaluated."""
        return self._is_evaluated(self.round - 1)

    def step(self) -> list[Record]:
        """Run one round of every replicate; return its records if it is evaluated."""
        return [*self.advance(), *self.finish_evaluations()]

    def advance(self) -> list[Record]:
        """Run one round of every replicate, and begin its evaluation if it is due.

        Returns:
            Records of rounds before the last one; their evaluations are waited for.
            Those of the last two rounds come later: on actors, the evaluation of a
            round goes on while the next one trains.
        """
        rounds = self._start_rounds()
        self._train(rounds)
        self._measure_accuracy(rounds)

        records = self._records_before(self.round - 1)
        for r, in_progress in rounds.items():
            self._finish_round(r, in_progress)
        if self._is_evaluated(self.round):
            self._evaluate(rounds)
        self.round += 1
        return records

    def finish_evaluations(self) -> list[Record]:
        """Wait for the evaluations that have begun, and return their records."""
        return self._records_before(self.round)

    def _is_evaluated(self, round: int) -> bool:
        return (round + 1) % self.run.eval_every == 0 or round + 1 == self.run.rounds

    def _records_before(self, round: int) -> list[Record]:
        """Return the records of all rounds before this one; wait for their evaluations.

        If an evaluation fails, its error is raised. The records before it come with the
        next call; those after it are dropped.
        """
        while self._pending and self._pending[0].round < round:
            _, wait_for_scores, drafts = self._pending.pop(0)
            try:
                scores = wait_for_scores()
            except Exception:
                self._pending.clear()
                raise
            for draft in drafts:
                accuracy, loss = scores[draft.replicate]
                self._complete.append(
                    replace(draft, test_accuracy=accuracy, test_loss=loss)
                )
        records = self._complete
        self._complete = []
        return records

    def _start_rounds(self) -> dict[int, _RoundInProgress]:
        """Choose the cohort and start the algorithm's round in each live replicate."""
        policy = self.run.participation
        rounds = {}
        for r, replicate in enumerate(self.replicates):
            if replicate.diverged:
                continue
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
            rounds[r] = _RoundInProgress(generator, cohort)
        return rounds

    def _train(self, rounds: Mapping[int, _RoundInProgress]) -> None:
        """Answer the requests of all replicates until every round has returned."""
        # A generator is started by sending None.
        answers: dict[int, Update | MeanUpdate | None] = dict.fromkeys(rounds)
        while answers:
            requests: dict[int, Request] = {}
            for r, answer in answers.items():
                try:
                    requests[r] = rounds[r].generator.send(answer)
                except StopIteration as end:
                    self._finish_training(r, end.value, rounds[r])
            answers = self._answer(requests, rounds) if requests else {}

    def _finish_training(
        self, r: int, returned: Any, in_progress: _RoundInProgress
    ) -> None:
        """Take what replicate r's round has returned as its new state."""
        if not in_progress.calls:
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
    ) -> dict[int, Update | MeanUpdate | None]:
        """Carry out the requests of several replicates as one batch of tasks."""
        tasks = {
            r: self._tasks(r, request, rounds[r]) for r, request in requests.items()
        }
        # If a request names one client, its row is the mean, so no mean is computed.
        averaged = [
            r
            for r, request in requests.items()
            if isinstance(request, TrainMean) and len(request.ids) > 1
        ]
        trained = self.work.train(
            [task for own in tasks.values() for task in own], averaged
        )

        answers: dict[int, Update | MeanUpdate | None] = {}
        start = 0
        for r, request in requests.items():
            answer: Update | MeanUpdate
            if r in trained.means:
                answer = trained.means[r]
            else:
                stop = start + len(tasks[r])
                answer = Update(*(column[start:stop] for column in trained.rows))
                start = stop
                if isinstance(request, TrainMean):
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

        offsets: Sequence[Tensor | None] = [None] * count
        if request.offset_MP is not None:
            offsets = list(request.offset_MP.float())

        # Tasks that start from the same tensor share it, so that it is sent only once.
        starts = [request.w_P.float()] * count
        if request.w_MP is not None:
            starts = list(request.w_MP.float())

        return [
            Task(
                replicate=r,
                client=i,
                w_P=w_P,
                local=request.local or self.run.local,
                seed=self.replicates[r].seed,
                round=self.round,
                call=in_progress.calls,
                offset_P=offset_P,
                prox=request.prox,
            )
            for i, w_P, offset_P in zip(request.ids, starts, offsets, strict=True)
        ]

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
        if total := weight_M.sum():
            replicate.train_accuracy = float(
                (answer.accuracy_M * weight_M).sum() / total
            )
            replicate.train_loss = float((answer.loss_M * weight_M).sum() / total)

    def _measure_accuracy(self, rounds: Mapping[int, _RoundInProgress]) -> None:
        """Measure the new parameters' training accuracy, if the policy wants that."""
        ids = {}
        for r, in_progress in rounds.items():
            clients = self.run.participation.measured_on(in_progress.cohort.ids)
            if clients is not None:
                ids[r] = clients
        if ids:
            w = {r: self.replicates[r].state.w_P.float() for r in ids}
            for r, accuracy in self.work.train_accuracy(w, ids).items():
                self.replicates[r].train_accuracy = accuracy

    def _finish_round(self, r: int, in_progress: _RoundInProgress) -> None:
        """Count the round, and stop the replicate if its parameters are not finite."""
        replicate = self.replicates[r]
        enforced = in_progress.cohort.enforced
        replicate.counts.server_rounds += "server" in in_progress.kinds
        replicate.counts.snapshots += enforced and "client" in in_progress.kinds
        if not _all_finite(replicate.state.w_P):
            replicate.diverged = (
                f"round {self.round}: parameters are not finite (last training loss "
                f"{replicate.train_loss}); lower the learning rates"
            )

    def _evaluate(self, rounds: Mapping[int, _RoundInProgress]) -> None:
        """Begin to evaluate the live replicates, and draft their records."""
        live = {
            r: self.replicates[r] for r in rounds if not self.replicates[r].diverged
        }
        if not live:
            return
        scores = self.work.evaluate(
            {r: rep.state.w_P.float() for r, rep in live.items()}
        )
        now = time.monotonic()
        seconds = now - self._last_record_time
        self._last_record_time = now

        drafts = list[Record]()
        for r, replicate in live.items():
            cohort = rounds[r].cohort
            drafts.append(
                Record(
                    replicate=r,
                    seed=replicate.seed,
                    round=self.round,
                    kind="+".join(sorted(rounds[r].kinds)),
                    cohort=cohort.ids,
                    # Until the evaluation has ended.
                    test_accuracy=math.nan,
                    test_loss=math.nan,
                    train_accuracy=replicate.train_accuracy,
                    train_loss=replicate.train_loss,
                    q=cohort.snapshot_prob,
                    seconds=seconds,
                    **vars(replicate.counts),
                )
            )
            replicate.counts = Counts()
        self._pending.append(_PendingEvaluation(self.round, scores, drafts))


def _all_finite(w_P: Tensor) -> bool:
    """Return whether every parameter is finite.

    If the sum is finite, every parameter is; summing takes a tenth of the time of
    looking at each. The sum of finite parameters may overflow, and only then each is
    looked at.
    """
    return bool(w_P.sum().isfinite()) or bool(w_P.isfinite().all())
