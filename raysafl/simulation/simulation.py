"""The rounds of a run, and of many runs that advance together on one machine.

What their replicates ask for is computed together. A run's results do not depend on the
runs that it advances with. A run that fails leaves the others as they are.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from raysafl.core.record import Record
from raysafl.core.work import (
    Evaluation,
    PersonalEvaluation,
    TooLargeError,
    Training,
    Work,
    WorkLostError,
    WorkRequest,
)
from raysafl.simulation.replicate import KeptModel, Replicate, RoundOfReplicate
from raysafl.simulation.run import Run

K = TypeVar("K", bound=Hashable)
Outcome: TypeAlias = list[Record] | BaseException
"""The records of one round of a run, or why the run failed."""

# Requests of a later kind wait until no run asks for an earlier one any more, so that as
# many as possible are merged.
KINDS: Sequence[type[WorkRequest]] = (Training, Evaluation, PersonalEvaluation)
# How torch says that there is no memory left, if its error is of no class of its own.
NO_MEMORY = ("out of memory", "can't allocate memory")


class Simulation:
    """The rounds of a run, which all of its replicates take in lock-step.

    Checkpoints store the `replicates`. `seconds` is the time that the rounds have taken.

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
        self.replicates = [
            Replicate(run, work, r, first_cell + r) for r in range(run.replicates)
        ]
        # Seconds that were spent on its rounds, and those up to its last records.
        self.seconds = 0.0
        self._recorded_seconds = 0.0

    @property
    def round(self) -> int:
        """The number of the next round, of the replicate that is furthest."""
        return max(replicate.round for replicate in self.replicates)

    @property
    def rounds_over(self) -> int:
        """How many rounds of all replicates are over: run, or not needed any more."""
        return sum(
            self.run.rounds if replicate.done else replicate.round
            for replicate in self.replicates
        )

    @property
    def done(self) -> bool:
        """Whether all rounds have been run, or every replicate has ended before."""
        return all(replicate.done for replicate in self.replicates)

    def step(self) -> list[Record]:
        """Run one round of every replicate; return its records if it is evaluated."""
        outcome = Lockstep[int](self.work).advance({0: self})[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def next_rounds(self) -> list[RoundOfReplicate]:
        """Begin a round of every replicate that takes part in one."""
        return [
            replicate.next_round()
            for replicate in self.replicates
            if not replicate.done
        ]

    def timed(self, records: list[Record], seconds: float) -> list[Record]:
        """Fill in the time since the records before these, and return them.

        Args:
            records: What the `next_rounds` have returned.
            seconds: How long the round took. If others shared this time, the part of
                it that counts as this run's.
        """
        self.seconds += seconds
        if not records:
            return []
        since_last = self.seconds - self._recorded_seconds
        self._recorded_seconds = self.seconds
        for record in records:
            record.seconds = since_last
        return records

    def kept(self) -> dict[int, KeptModel]:
        """Return the models that the run keeps after its last round, by replicate."""
        return {
            replicate.number: model
            for replicate in self.replicates
            if (model := replicate.kept()) is not None
        }


class Lockstep(Generic[K]):
    """Advances runs on the same machine by one round at a time.

    Attributes:
        work: The machine.
        most: The maximum number of runs whose requests are merged into one; None as
            long as there is no limit. It is halved for good when the machine could not
            carry out a merged request for lack of memory, or because it lost its actors
            again and again.
        most_reason: Why there is a limit, as a sentence; empty without one.

    Example:
        >>> from raysafl.quickstart import BASE
        >>> from raysafl.runtime.in_process import Worker
        >>> runs = [BASE.replace(replicates=1, seed=seed) for seed in (3, 4)]
        >>> cells = [cell for run in runs for cell in run.cells]
        >>> work = Worker(cells, BASE.data.load(), BASE.model)
        >>> pack = {run.seed: Simulation(run, work, i) for i, run in enumerate(runs)}
        >>> outcomes = Lockstep(work).advance(pack)
        >>> [(seed, records[0].round) for seed, records in outcomes.items()]
        [(3, 0), (4, 0)]
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.most: int | None = None
        self.most_reason = ""

    def advance(self, runs: Mapping[K, Simulation]) -> dict[K, Outcome]:
        """Run one round of each run.

        Args:
            runs: Runs that are not done, on different cells of `work`.

        Returns:
            For each run the records of its round, or the error that made it fail: one
            that its policy, its algorithm or its model raised. What `work` raises for
            several runs together is found out by asking for fewer at a time.
        """
        begin = time.monotonic()
        turns = [
            _Turn(key, generator)
            for key, simulation in runs.items()
            for generator in simulation.next_rounds()
        ]
        failed: dict[K, BaseException] = {}
        for turn in turns:
            turn.go_on(None, failed)
        while asking := _next_kind(turns, failed):
            answers = self._carry_out(asking)
            for turn in asking:
                turn.go_on(answers[turn.key], failed)
        share = (time.monotonic() - begin) / max(1, len(runs))
        records: dict[K, list[Record]] = {key: [] for key in runs}
        for turn in turns:
            if turn.record is not None:
                records[turn.key].append(turn.record)
        return {
            key: failed[key] if key in failed else simulation.timed(records[key], share)
            for key, simulation in runs.items()
        }

    def _carry_out(self, asking: Sequence["_Turn[K]"]) -> dict[K, Any]:
        """Carry out requests of one kind; return for each run the answer, or an error."""
        answers: dict[K, Any] = {}
        batches = [list(dict.fromkeys(turn.key for turn in asking))]
        while batches:
            batch = batches.pop()
            if len(batch) > (self.most or len(batch)):
                batches += _halves(batch)
                continue
            chosen = set(batch)
            requests = [turn.request for turn in asking if turn.key in chosen]
            try:
                answer = requests[0].carry_out(self.work, requests)
            except Exception as error:
                if len(batch) == 1:
                    answers[batch[0]] = error
                    continue
                if _was_too_much(error):
                    self._halve(len(batch), error)
                batches += _halves(batch)
            else:
                answers |= dict.fromkeys(batch, answer)
        return answers

    def _halve(self, runs: int, error: Exception) -> None:
        self.most = runs // 2
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self.most_reason = (
            f"runs are computed at most {self.most} at a time, because {runs} were too many "
            f"for the machine: {lines[-1].strip()}"
        )


class _Turn(Generic[K]):
    """A round of one replicate, as far as it has come.

    Args:
        key: The run.
        generator: The round.

    Attributes:
        request: What it asks for; None if it asks for nothing any more.
        record: What it has returned.
    """

    __slots__ = ("generator", "key", "record", "request")

    def __init__(self, key: K, generator: RoundOfReplicate) -> None:
        self.key = key
        self.generator = generator
        self.request: Any = None
        self.record: Record | None = None

    def go_on(self, answer: Any, failed: dict[K, BaseException]) -> None:
        """Send an answer to the replicate, which may be an error, unless its run has failed.

        Args:
            answer: The answer.
            failed: Why runs have failed, to which this one is added if it fails now.
        """
        self.request = None
        if self.key in failed:
            return
        if isinstance(answer, BaseException):
            failed[self.key] = answer
            return
        try:
            self.request = self.generator.send(answer)
        except StopIteration as end:
            self.record = end.value
        # The user's own code may call `sys.exit`, which must not end the other runs.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            failed[self.key] = error


def _next_kind(
    turns: Sequence[_Turn[K]], failed: Mapping[K, BaseException]
) -> list[_Turn[K]]:
    """Return the replicates that ask for the earliest kind that any of them asks for."""
    asking = [
        turn for turn in turns if turn.request is not None and turn.key not in failed
    ]
    for kind in KINDS:
        if of_kind := [turn for turn in asking if type(turn.request) is kind]:
            return of_kind
    return []


def _halves(batch: list[K]) -> tuple[list[K], list[K]]:
    middle = (len(batch) + 1) // 2
    return batch[middle:], batch[:middle]


def _was_too_much(error: Exception) -> bool:
    """Whether less work at a time might have gone without this error."""
    if isinstance(error, TooLargeError):
        return False
    return isinstance(error, WorkLostError | MemoryError) or any(
        words in str(error) for words in NO_MEMORY
    )
