"""Rounds of raysafl as a function that is called again and again while it is timed."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from raysafl.core.problem import Dataset
from raysafl.core.record import Record
from raysafl.core.work import Cell, Work
from raysafl.runtime.in_process import Worker
from raysafl.simulation.lockstep import Lockstep
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation

# One round of all runs; the mean test accuracy if it was evaluated.
Step = Callable[[], float | None]


class Rounds(NamedTuple):
    """Rounds that are ready to be timed.

    Attributes:
        step: runs one round.
        engine: the name of the engine that trains; None if that is not known.
    """

    step: Step
    engine: str | None = None


def rounds_of(
    runs: Sequence[Run], dataset: Dataset, device: str = "cpu", engine: str = "auto"
) -> Rounds:
    """Prepare rounds of several runs, as one pack in this process.

    Args:
        runs: runs with the same data source, model, objective and batch size.
        dataset: their dataset.
        device: the torch device that trains.
        engine: the engine's name, or "auto".
    """
    work = worker_of(runs, dataset, device, engine)
    return Rounds(stepper(runs, work), work.trainer.engine_name)


def worker_of(
    runs: Sequence[Run], dataset: Dataset, device: str = "cpu", engine: str = "auto"
) -> Worker:
    """Make the worker of several runs; see `rounds_of` for the arguments."""
    first = runs[0]
    return Worker(
        cells_of(runs),
        dataset,
        first.model,
        device=device,
        engine=engine,
        batch_size=first.local.batch_size,
        objective=first.objective,
    )


def cells_of(runs: Sequence[Run]) -> list[Cell]:
    """Return the cells of all runs, one run after the other."""
    return [cell for run in runs for cell in run.cells]


def copies_of(run: Run, count: int) -> list[Run]:
    """Return so many runs that differ from this one in their seeds only."""
    return [run.replace(seed=run.seed + i * run.replicates) for i in range(count)]


def stepper(runs: Sequence[Run], work: Work) -> Step:
    """Return a function that advances runs on the same work by one round."""
    pack: dict[int, Simulation] = {}
    first_cell = 0
    for number, run in enumerate(runs):
        pack[number] = Simulation(run, work, first_cell)
        first_cell += run.replicates
    lockstep = Lockstep[int](work)

    def step() -> float | None:
        records = list[Record]()
        for outcome in lockstep.advance(pack).values():
            if isinstance(outcome, BaseException):
                raise outcome
            records += outcome
        return mean(accuracies(records)) if records else None

    return step


def accuracies(records: Sequence[Record]) -> list[float]:
    """Return the test accuracies; the workloads are classifications."""
    return [r.test_accuracy for r in records if r.test_accuracy is not None]


def mean(values: Sequence[float]) -> float:
    """Return the mean of some numbers."""
    return sum(values) / len(values)
