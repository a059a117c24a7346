"""A run, and its rounds: what is simulated, with no word of where.

All replicates (seeds) of a run advance together: each round of an algorithm is a generator of
training requests, and the requests of all replicates go to `Work` as one batch.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysafl.core.algorithm import Round, Setting, State, Train, Update
from raysafl.core.problem import EVERYONE, SERVER
from raysafl.core.randomness import Key
from raysafl.core.record import Record
from raysafl.core.work import Scores, Task, Work
from raysafl.simulation.run import Run

BYTES = 4  # per parameter sent: float32
KINDS = {SERVER: "server", EVERYONE: "central"}  # who trained, if not a client


@dataclass
class Counts:
    """What was spent since the last record."""

    snapshots: int = 0
    server_rounds: int = 0
    steps: int = 0
    bytes_down: int = 0
    bytes_up: int = 0


@dataclass
class Replicate:
    """One seed of a run, between two rounds: this and the round number are the checkpoint."""

    seed: int
    state: State
    policy: Any
    train_accuracy: float | None = None
    train_loss: float | None = None
    q: float | None = None
    counts: Counts = field(default_factory=Counts)
    diverged: str = ""  # why it was stopped; empty while all is well


@dataclass
class _Turn:
    """One replicate's round in progress."""

    round: Round
    cohort: list[int]
    enforced: bool
    calls: int = 0
    trained: set[str] = field(default_factory=set)


class _Pending(NamedTuple):
    """An evaluation under way, and the records that wait for its scores."""

    round: int
    scores: Callable[[], Scores]
    drafts: list[Record]


class Simulation:
    """The rounds of a run. `step` does one; `round`, `replicates` are the whole state.

    `advance` does not wait for a round's evaluation, which so runs beside the next round; its
    records come two rounds later or from `settle`. A checkpoint needs them settled.
    """

    def __init__(self, run: Run, work: Work) -> None:
        self.run, self.work, self.round = run, work, 0
        self._since = time.monotonic()
        self._pending: list[_Pending] = []  # evaluations under way, the oldest first
        self._found: list[Record] = []  # with their scores, but not given yet
        self.algorithms = [
            run.algorithm.prepare(Setting(len(held), sum(held) / len(held), server, run.local))
            for held, server in work.sizes()
        ]
        self.replicates = [
            Replicate(seed, algorithm.init(w_P, run.data.clients), run.participation.init())
            for seed, algorithm, w_P in zip(run.seeds, self.algorithms, work.init(), strict=True)
        ]

    @property
    def done(self) -> bool:
        """All rounds are run, or every replicate has diverged."""
        return self.round >= self.run.rounds or all(r.diverged for r in self.replicates)

    @property
    def settled(self) -> bool:
        """Whether no record waits for its evaluation."""
        return not self._pending and not self._found

    @property
    def evaluated(self) -> bool:
        """Whether the last round was due to be evaluated."""
        return self._due(self.round - 1)

    def _due(self, number: int) -> bool:
        return (number + 1) % self.run.eval_every == 0 or number + 1 == self.run.rounds

    def step(self) -> list[Record]:
        """Run one round of every replicate; records if it is an evaluated one."""
        return [*self.advance(), *self.settle()]

    def advance(self) -> list[Record]:
        """Run one round of every replicate, and have it evaluated if it is due.

        Returns the records of evaluations before the last round's: an actor does that one while
        it waits for this round's other actors, and for the next round.
        """
        turns = self._begin()
        self._train(turns)
        self._measure(turns)
        records = self._records(self.round - 1)
        for r, turn in turns.items():
            self._check(r, turn)
        if self._due(self.round):
            self._evaluate(turns)
        self.round += 1
        return records

    def settle(self) -> list[Record]:
        """Wait for the evaluations under way; their records."""
        return self._records(self.round)

    def _records(self, before: int) -> list[Record]:
        """The records of rounds before this one that were not given yet; waits for them.

        If an evaluation fails, those before it come with the next call, and none behind it.
        """
        while self._pending and self._pending[0].round < before:
            _, scores, drafts = self._pending.pop(0)
            try:
                found = scores()
            except Exception:
                self._pending.clear()
                raise
            for draft in drafts:
                accuracy, loss = found[draft.replicate]
                self._found.append(replace(draft, test_accuracy=accuracy, test_loss=loss))
        records, self._found = self._found, []
        return records

    def _begin(self) -> dict[int, _Turn]:
        """Pick the cohorts and start the algorithm's round in each live replicate."""
        turns = {}
        for r, rep in enumerate(self.replicates):
            if rep.diverged:
                continue
            key = Key(rep.seed, self.round)
            rep.policy, cohort = self.run.participation.pick(
                rep.policy, self.run.data.clients, key, rep.train_accuracy
            )
            assert cohort, "a policy picked nobody"
            rep.q, enforced = self.run.participation.note(rep.policy)
            turns[r] = _Turn(self.algorithms[r].round(rep.state, cohort, key), cohort, enforced)
        return turns

    def _train(self, turns: Mapping[int, _Turn]) -> None:
        """Answer the requests of all replicates together until every round has returned."""
        replies: dict[int, Update | None] = dict.fromkeys(turns)
        while replies:
            requests: dict[int, Train] = {}
            for r, reply in replies.items():
                try:
                    requests[r] = turns[r].round.send(reply)  # type: ignore[arg-type]
                except StopIteration as end:
                    self.replicates[r].state = end.value
            replies = dict(self._answer(requests, turns)) if requests else {}

    def _answer(
        self, requests: Mapping[int, Train], turns: Mapping[int, _Turn]
    ) -> dict[int, Update]:
        """One batch of training for the requests of several replicates."""
        asked = {r: self._tasks(r, request, turns[r]) for r, request in requests.items()}
        rows = self.work.train([task for tasks in asked.values() for task in tasks])
        updates, first, delta = {}, 0, 0
        for r, tasks in asked.items():
            last, deltas = first + len(tasks), delta + (1 if tasks[0].mean else len(tasks))
            updates[r] = Update(rows[0][delta:deltas], *(column[first:last] for column in rows[1:]))
            first, delta = last, deltas
            self._count(r, requests[r], updates[r])
        return updates

    def _tasks(self, r: int, request: Train, turn: _Turn) -> list[Task]:
        assert len(request.ids) > 0, "an algorithm asked nobody to train"
        turn.trained |= {KINDS.get(i, "client") for i in request.ids}
        turn.calls += 1
        sgd, seed = request.sgd or self.run.local, self.replicates[r].seed
        offsets: Sequence[Tensor | None] = (
            [None] * len(request.ids)
            if request.offset_MP is None
            else list(request.offset_MP.float())
        )
        starts = (
            [request.w_P.float()] * len(request.ids)
            if request.w_MP is None
            else list(request.w_MP.float())
        )
        mean = request.mean and len(request.ids) > 1  # one row is its own mean
        return [
            Task(r, i, w_P, sgd, seed, self.round, turn.calls, offset_P, request.prox, mean)
            for i, w_P, offset_P in zip(request.ids, starts, offsets, strict=True)
        ]

    def _count(self, r: int, request: Train, update: Update) -> None:
        """Steps, traffic (only clients' training moves bytes) and the cohort's accuracy."""
        rep = self.replicates[r]
        rep.counts.steps += int(update.steps_M.sum())
        rows = sum(i >= 0 for i in request.ids) * request.w_P.numel() * BYTES
        rep.counts.bytes_down += rows * (1 + request.extra_down)
        rep.counts.bytes_up += rows * (1 + request.extra_up)
        weight_M = update.samples_M
        if SERVER in request.ids:
            weight_M = weight_M * torch.tensor([i != SERVER for i in request.ids])
        if seen := weight_M.sum():
            rep.train_accuracy = float((update.accuracy_M * weight_M).sum() / seen)
            rep.train_loss = float((update.loss_M * weight_M).sum() / seen)

    def _measure(self, turns: Mapping[int, _Turn]) -> None:
        """The new parameters' training accuracy, if the policy goes by it."""
        measured = {r: self.run.participation.measured_on(turn.cohort) for r, turn in turns.items()}
        ids = {r: clients for r, clients in measured.items() if clients is not None}
        if ids:
            w = {r: self.replicates[r].state.w_P.float() for r in ids}
            for r, accuracy in self.work.train_accuracy(w, ids).items():
                self.replicates[r].train_accuracy = accuracy

    def _check(self, r: int, turn: _Turn) -> None:
        rep = self.replicates[r]
        rep.counts.server_rounds += "server" in turn.trained
        rep.counts.snapshots += turn.enforced and "client" in turn.trained
        if not _finite(rep.state.w_P):
            rep.diverged = (
                f"round {self.round}: parameters are not finite (last training loss "
                f"{rep.train_loss}); lower the learning rates"
            )

    def _evaluate(self, turns: Mapping[int, _Turn]) -> None:
        """Have the live replicates evaluated, and draft their records."""
        live = {r: self.replicates[r] for r in turns if not self.replicates[r].diverged}
        if not live:
            return
        scores = self.work.evaluate({r: rep.state.w_P.float() for r, rep in live.items()})
        now, drafts = time.monotonic(), list[Record]()
        seconds, self._since = now - self._since, now
        for r, rep in live.items():
            drafts.append(
                Record(
                    replicate=r,
                    seed=rep.seed,
                    round=self.round,
                    kind="+".join(sorted(turns[r].trained)),
                    cohort=turns[r].cohort,
                    test_accuracy=math.nan,
                    test_loss=math.nan,
                    train_accuracy=rep.train_accuracy,
                    train_loss=rep.train_loss,
                    q=rep.q,
                    seconds=seconds,
                    **vars(rep.counts),
                )
            )
            rep.counts = Counts()
        self._pending.append(_Pending(self.round, scores, drafts))


def _finite(w_P: Tensor) -> bool:
    """Whether all are finite: so they are where their sum is, which takes a tenth of the time."""
    return bool(w_P.sum().isfinite()) or bool(w_P.isfinite().all())
