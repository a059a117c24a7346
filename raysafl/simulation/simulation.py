"""The rounds of a run, and of many runs that advance together on one machine.

Their replicates take rounds in groups of those that are alike, and what all groups ask for is
computed together. A run's results do not depend on the runs that it advances with. A run
that fails leaves the others as they are.
"""

import logging
import pickle
import time
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeAlias, TypeVar

from raysafl.core.algorithm import Algorithm, ContinuedTraining
from raysafl.core.component import Component
from raysafl.core.record import Record
from raysafl.core.work import (
    Evaluation,
    TooLargeError,
    Training,
    Work,
    WorkLostError,
    WorkRequest,
)
from raysafl.simulation import lifting
from raysafl.simulation.lifting import ClientTable, NotLiftable, can_be_column
from raysafl.simulation.replicate import KeptModel, Replicate
from raysafl.simulation.replicates import Replicates
from raysafl.simulation.run import Run
from raysafl.simulation.turns import structure

LOG = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
Outcome: TypeAlias = list[Record] | BaseException
"""The records of one round of a run, or why the run failed."""

# Requests of a later kind wait until no group asks for an earlier one any more, so that as
# many as possible are merged.
KINDS: Sequence[type[WorkRequest]] = (Training, Evaluation)
# How torch says that there is no memory left, if its error is of no class of its own.
NO_MEMORY = ("out of memory", "can't allocate memory")


class Simulation:
    """The rounds of a run, which all of its replicates take in lock-step.

    Checkpoints store the `replicates`.

    Args:
        run: The configuration.
        work: The machine that trains and evaluates.
        first_cell: The number of the first replicate's cell in `work`; those of the
            other replicates follow it.

    Attributes:
        seconds: How long its rounds have taken in this process.
        recorded: How long those up to the last record have taken.

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
        self.seconds = self.recorded = 0.0

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

    @cached_property
    def _lockstep(self) -> "Lockstep[int]":
        return Lockstep(self.work)

    def step(self) -> list[Record]:
        """Run one round of every replicate; return its records if it is evaluated."""
        outcome = self._lockstep.advance({0: self}).get(0, [])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

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
        most: The maximum number of replicates whose requests are merged into one; None as
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
        self._groups: list[Replicates] = []
        self._key_of: dict[Replicate, K] = {}
        self._runs: Mapping[K, Simulation] = {}
        self._table: ClientTable | None = None
        # Whether a group was divided, or a run has failed, in the last round.
        self._is_divided = False
        # The algorithms, by the classes that they are made of, whose settings must be equal
        # within a group, and those whose rounds cannot be taken together at all.
        self._with_equal_settings: set[Hashable] = set()
        self._alone: set[Hashable] = set()
        self._identity_of: dict[int, tuple[Component, tuple[Hashable, Hashable]]] = {}

    def advance(self, runs: Mapping[K, Simulation]) -> dict[K, Outcome]:
        """Run one round of each run.

        Args:
            runs: Runs that are not done, on different cells of `work`.

        Returns:
            For each run of which there is something to tell, because the round was
            evaluated or the run has ended, the records of the round; or the error that
            made it fail: one that its policy, its algorithm or its model raised. What
            `work` raises for several runs together is found out by asking for fewer at a
            time.
        """
        begin = time.monotonic()
        if (
            self._is_divided
            or runs != self._runs
            or any(group.is_left for group in self._groups)
        ):
            self._runs = dict(runs)
            self._key_of = {
                replicate: key
                for key, simulation in runs.items()
                for replicate in simulation.replicates
                if not replicate.done
            }
            self._groups = self._formed(list(self._key_of))
            self._is_divided = False
        failed: dict[K, BaseException] = {}
        ended: list[Replicates] = []
        waiting: list[Replicates] = []
        ready: list[tuple[Replicates, Any]] = [(own, None) for own in self._groups]
        while ready:
            for group, answers in ready:
                for own in self._gone_on(group, answers, failed):
                    (waiting if own.requests else ended).append(own)
            ready, waiting = self._answered(waiting)
        self._groups = ended
        # A run that has failed is in no group any more.
        self._is_divided |= bool(failed)
        share = (time.monotonic() - begin) / max(1, len(runs))
        return {**self._records(share), **failed}

    def _records(self, seconds: float) -> dict[K, list[Record]]:
        """End the round, and return the records of the runs of which there is something to tell.

        Args:
            seconds: A run's share of the time that the round took.
        """
        records: dict[K, list[Record]] = {}
        for group in self._groups:
            of_group = group.end_round()
            if not of_group and not group.is_left:
                continue
            for place, member in enumerate(group.members):
                if place in of_group:
                    own = records.setdefault(self._key_of[member], [])
                    own.append(of_group[place])
                elif member.done:
                    records.setdefault(self._key_of[member], [])
        for simulation in self._runs.values():
            simulation.seconds += seconds
        for key, own in records.items():
            own.sort(key=lambda record: record.replicate)
            simulation = self._runs[key]
            for record in own:
                record.seconds = simulation.seconds - simulation.recorded
            if own:
                simulation.recorded = simulation.seconds
        return records

    def _gone_on(
        self, group: Replicates, answers: Any, failed: dict[K, BaseException]
    ) -> list[Replicates]:
        """Give a group the answers that it waits for; return what it has become.

        If its round could not be carried out, it is taken again by smaller groups.
        """
        try:
            if isinstance(answers, BaseException):
                raise answers
            group.go_on(answers)
            return [group]
        # The user's own code may call `sys.exit`, which must not end the other runs.
        except (Exception, SystemExit, KeyboardInterrupt, NotLiftable) as error:
            if group.size == 1 or isinstance(error, KeyboardInterrupt):
                failed |= {self._key_of[member]: error for member in group.members}
                return []
            parts = self._divided(group, error)
        return [own for part in parts for own in self._gone_on(part, None, failed)]

    def _divided(self, group: Replicates, error: BaseException) -> list[Replicates]:
        """Return smaller groups of the same replicates."""
        members = list(group.members)
        # Other groups are formed for the next round.
        self._is_divided = True
        if _was_too_much(error):
            self._halve(len(members), error)
            return self._formed(members)
        if not isinstance(error, NotLiftable):
            return [self._group([member], is_lifted=False) for member in members]
        classes = _classes(group.algorithm)
        if group.algorithm_columns:
            self._with_equal_settings.add(classes)
        elif classes not in self._alone:
            self._alone.add(classes)
            # Whoever wrote the class can change it.
            LOG.log(
                logging.WARNING if group.is_users_own else logging.INFO,
                "%s takes its rounds replicate by replicate: %s",
                type(group.algorithm).__name__,
                error,
            )
        return self._formed(members)

    def _formed(self, replicates: Sequence[Replicate]) -> list[Replicates]:
        """Form groups of replicates that are alike."""
        alike: dict[Hashable, list[Replicate]] = {}
        for replicate in replicates:
            alike.setdefault(self._likeness(replicate), []).append(replicate)
        groups = []
        for members in alike.values():
            most = self.most or len(members)
            is_lifted = self._can_lift(members[0].algorithm)
            groups += [
                self._group(members[start : start + most], is_lifted)
                for start in range(0, len(members), most)
            ]
        return groups

    def _can_lift(self, algorithm: Algorithm) -> bool:
        return lifting.CAN_LIFT and _classes(algorithm) not in self._alone

    def _group(self, members: Sequence[Replicate], is_lifted: bool) -> Replicates:
        if self._table is None:
            self._table = ClientTable(len(members[0].state.w_P))
        return Replicates(members, self._table, is_lifted and len(members) > 1)

    def _likeness(self, replicate: Replicate) -> Hashable:
        """Return what is equal for replicates that can be in one group."""
        run = replicate.run
        standing = replicate.standing
        algorithm = classes = _classes(replicate.algorithm)
        if self._can_lift(replicate.algorithm):
            algorithm = self._identity(
                replicate.algorithm, classes not in self._with_equal_settings
            )
        return (
            algorithm,
            *(
                self._identity(own)
                for own in (replicate.participation, run.patience, run.eval_clients)
            ),
            self._identity(run.devices),
            (run.rounds, run.eval_every, run.keep, run.data.clients),
            (run.data.has_validation, replicate.shared_bytes > 0),
            (isinstance(run.local, ContinuedTraining), run.local.num_moments),
            (standing.round, len(standing.counts.cohorts), structure(standing.state)),
        )

    def _identity(
        self, component: Component | None, without_numbers: bool = False
    ) -> Hashable:
        """Return what is equal for components that do the same.

        Args:
            component: The component.
            without_numbers: Whether those also do that differ in numbers that are columns
                of a group.
        """
        if component is None:
            return None
        known = self._identity_of.get(id(component))
        if known is None or known[0] is not component:
            known = (
                component,
                (_identity(component, False), _identity(component, True)),
            )
            self._identity_of[id(component)] = known
        return known[1][without_numbers]

    def _answered(
        self, waiting: list[Replicates]
    ) -> tuple[list[tuple[Replicates, Any]], list[Replicates]]:
        """Have the requests of the earliest kind carried out.

        Returns:
            The groups that have asked for them, with their answers, or an error; and those
            that go on to wait.
        """
        for kind in KINDS:
            asking = [group for group in waiting if type(group.requests[0]) is kind]
            if asking:
                others = [group for group in waiting if group not in asking]
                return self._carried_out(asking), others
        return [], []

    def _carried_out(self, asking: list[Replicates]) -> list[tuple[Replicates, Any]]:
        """Carry out requests of one kind; return the answers to each group, or an error."""
        answered: list[tuple[Replicates, Any]] = []
        batches = [asking]
        while batches:
            batch = batches.pop()
            size = sum(group.size for group in batch)
            if len(batch) > 1 and size > (self.most or size):
                batches += _halves(batch)
                continue
            requests: Any = [request for group in batch for request in group.requests]
            is_training = isinstance(requests[0], Training)
            try:
                answers = (self.work.train if is_training else self.work.sums)(requests)
            except Exception as error:
                if len(batch) == 1:
                    answered.append((batch[0], error))
                    continue
                if _was_too_much(error):
                    self._halve(size, error)
                batches += _halves(batch)
                continue
            rest = iter(answers)
            for group in batch:
                answered.append((group, [next(rest) for _ in group.requests]))
        return answered

    def _halve(self, replicates: int, error: BaseException) -> None:
        self.most = max(1, replicates // 2)
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self.most_reason = (
            f"replicates are computed at most {self.most} at a time, because {replicates} were "
            f"too many for the machine: {lines[-1].strip()}"
        )


def _classes(algorithm: Algorithm) -> Hashable:
    """Return the classes of which an algorithm is made."""
    return tuple(map(type, algorithm.components()))


def _identity(component: Component, without_numbers: bool) -> Hashable:
    """Return what is equal for components that do the same; see `Lockstep._identity`."""
    values: list[Hashable] = []
    for name, value in component:
        if isinstance(value, Algorithm):
            values.append((name, _identity(value, without_numbers)))
        elif (
            without_numbers
            and isinstance(component, Algorithm)
            and can_be_column(component, name)
        ):
            values.append((name, float))
        elif isinstance(value, Component):
            values.append((name, _identity(value, without_numbers=False)))
        else:
            values.append((name, _hashable(value)))
    private = component.__pydantic_private__
    return type(component), tuple(values), _hashable(private) if private else None


def _hashable(value: Any) -> Hashable:
    """Return a value, or its pickle; where there is none, what is equal to nothing."""
    try:
        hash(value)
    except TypeError:
        try:
            return pickle.dumps(value)
        except Exception:  # What a class of the user's raises cannot be known.
            return id(value)
    return value  # type: ignore[no-any-return]


def _halves(batch: list[Replicates]) -> tuple[list[Replicates], list[Replicates]]:
    middle = (len(batch) + 1) // 2
    return batch[middle:], batch[:middle]


def _was_too_much(error: BaseException) -> bool:
    """Whether less work at a time might have gone without this error."""
    if isinstance(error, TooLargeError):
        return False
    return isinstance(error, WorkLostError | MemoryError) or any(
        words in str(error) for words in NO_MEMORY
    )
