"""A run: its replicates, and the time that their rounds take."""

from raysafl.core.record import Record
from raysafl.core.work import Work
from raysafl.simulation.lockstep import Lockstep
from raysafl.simulation.replicate import KeptModel, Replicate, RoundOfReplicate
from raysafl.simulation.run import Run


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
        """The number of the next round."""
        return max(own.round for own in self.replicates)

    @property
    def rounds_over(self) -> int:
        """How many rounds of all replicates are over: run, or not needed any more."""
        rounds = self.run.rounds
        return sum(rounds if own.done else own.round for own in self.replicates)

    @property
    def done(self) -> bool:
        """Whether all rounds have been run, or every replicate has ended before."""
        return all(own.done for own in self.replicates)

    def step(self) -> list[Record]:
        """Run one round of every replicate; return its records if it is evaluated."""
        outcome = Lockstep[int](self.work).advance({0: self})[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def next_rounds(self) -> list[RoundOfReplicate]:
        """Begin a round of every replicate that takes part in one."""
        return [own.next_round() for own in self.replicates if not own.done]

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
        kept = {own.number: own.kept() for own in self.replicates}
        return {number: model for number, model in kept.items() if model is not None}
