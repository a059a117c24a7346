"""Many runs in lock-step: what their rounds ask for is computed together.

A run's results do not depend on the runs that it advances with. A run that fails leaves
the others as they are.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from raysafl.core.record import Record
from raysafl.core.work import (
    ClientEvaluation,
    Evaluation,
    PersonalEvaluation,
    TrainAccuracy,
    Training,
    Work,
    WorkLostError,
    WorkRequest,
)
from raysafl.simulation.simulation import RoundOfRun, Simulation

K = TypeVar("K", bound=Hashable)
Outcome: TypeAlias = list[Record] | BaseException
"""The records of one round of a run, or why the run failed."""

# Requests of a later kind wait until no run asks for an earlier one any more, so that as
# many as possible are merged.
KINDS: Sequence[type[WorkRequest]] = (
    Training,
    TrainAccuracy,
    Evaluation,
    ClientEvaluation,
    PersonalEvaluation,
)
# How torch says that there is no memory left, if its error is of no class of its own.
NO_MEMORY = ("out of memory", "can't allocate memory")


class Lockstep(Generic[K]):
    """Advances simulations on the same machine by one round at a time.

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

    def advance(self, simulations: Mapping[K, Simulation]) -> dict[K, Outcome]:
        """Run one round of each simulation.

        Args:
            simulations: Simulations that are not done, on different cells of `work`.

        Returns:
            For each simulation the records of its round, or the error that made its run
            fail: one that its policy, its algorithm or its model raised. What `work`
            raises for several runs together is found out by asking for fewer at a time.
        """
        begin = time.monotonic()
        rounds = {key: one.next_round() for key, one in simulations.items()}
        outcomes: dict[K, Outcome] = {}
        # The requests that have not been answered.
        open_requests: dict[K, WorkRequest] = {}
        answers: dict[K, Any] = dict.fromkeys(rounds)
        while answers or open_requests:
            for key, answer in answers.items():
                outcome = _continued(rounds[key], answer)
                if isinstance(outcome, WorkRequest):
                    open_requests[key] = outcome
                else:
                    outcomes[key] = outcome
            answers, failed = self._carry_out(_next_kind(open_requests))
            outcomes |= failed
            for key in (*answers, *failed):
                del open_requests[key]
        share = (time.monotonic() - begin) / max(1, len(simulations))
        return {
            key: _timed(outcomes[key], one, share) for key, one in simulations.items()
        }

    def _carry_out(
        self, open_requests: Mapping[K, WorkRequest]
    ) -> tuple[dict[K, Any], dict[K, Outcome]]:
        """Carry out requests of one kind: return the answers, and the errors."""
        answers: dict[K, Any] = {}
        failed: dict[K, Outcome] = {}
        batches = [list(open_requests)] if open_requests else []
        while batches:
            batch = batches.pop()
            if len(batch) > (self.most or len(batch)):
                batches += _halves(batch)
                continue
            try:
                answer = _merged([open_requests[key] for key in batch]).carry_out(
                    self.work
                )
            except Exception as error:
                if len(batch) == 1:
                    failed[batch[0]] = error
                    continue
                if _was_too_much(error):
                    self._halve(len(batch), error)
                batches += _halves(batch)
            else:
                answers |= dict.fromkeys(batch, answer)
        return answers, failed

    def _halve(self, runs: int, error: Exception) -> None:
        self.most = runs // 2
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self.most_reason = (
            f"at most {self.most} runs are computed together, because {runs} were too "
            f"many for the machine: {lines[-1].strip()}"
        )


def _continued(round: RoundOfRun, answer: Any) -> WorkRequest | Outcome:
    """Go on with a round: return what it asks for next, or how it has ended."""
    try:
        return round.send(answer)
    except StopIteration as end:
        records: list[Record] = end.value
        return records
    # The user's own code may call `sys.exit`, which must not end the other runs.
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return error


def _timed(outcome: Outcome, simulation: Simulation, seconds: float) -> Outcome:
    """Give records their share of the time that all simulations took together."""
    if isinstance(outcome, BaseException):
        return outcome
    return simulation.timed(outcome, seconds)


def _next_kind(open_requests: Mapping[K, WorkRequest]) -> dict[K, WorkRequest]:
    """Return the requests of the earliest kind that any run asks for."""
    for kind in KINDS:
        found = {
            key: one for key, one in open_requests.items() if isinstance(one, kind)
        }
        if found:
            return found
    return {}


def _merged(requests: Sequence[Any]) -> WorkRequest:
    """Return one request for several of one kind."""
    if len(requests) == 1:
        alone: WorkRequest = requests[0]
        return alone
    together: WorkRequest = type(requests[0]).merged(requests)
    return together


def _halves(batch: list[K]) -> tuple[list[K], list[K]]:
    middle = (len(batch) + 1) // 2
    return batch[middle:], batch[:middle]


def _was_too_much(error: Exception) -> bool:
    """Whether an error may not have come up if less had been asked for."""
    return isinstance(error, WorkLostError | MemoryError) or any(
        words in str(error) for words in NO_MEMORY
    )
