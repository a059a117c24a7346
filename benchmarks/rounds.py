"""Rounds of raysafl, in this process or on Ray actors, ready to be timed."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from raysafl.core.record import Record
from raysafl.core.work import Work
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Lockstep, Simulation

# Rounds that do not count where rounds are timed for some seconds, and that count at least.
WARM = 3
LEAST = 5


@contextmanager
def work_on_actors(
    runs: Sequence[Run], hardware: Any, engine: str = "auto", data: Any = None
) -> Iterator[tuple[Any, str]]:
    """Start client actors on the Ray that runs, which are killed when the block ends.

    Args:
        runs: runs with one dataset, model, objective and batch size.
        hardware: how many actors, and what each of them has.
        engine: the engine's name, or "auto".
        data: Ray's reference to the dataset; None if it is not there yet.

    Yields:
        Their work, and the name of their engine.
    """
    import ray

    from raysafl.runtime.client_actor import PackSetup
    from raysafl.runtime.on_actors import host_pack, start_actors

    first = runs[0]
    setup = PackSetup(
        [cell for run in runs for cell in run.cells],
        data or ray.put(first.data.load()),
        first.model,
        engine,
        objective=first.objective,
    )
    actors = start_actors(hardware)
    try:
        work, _, chosen = host_pack(actors, setup)
        yield work, chosen
    finally:
        actors.kill()


def copies_of(run: Run, count: int) -> list[Run]:
    """Return so many runs that differ from this one in their seeds only."""
    return [run.replace(seed=run.seed + i * run.replicates) for i in range(count)]


class Pack:
    """Runs that advance in lock-step on the same work, and begin anew after their end.

    Args:
        runs: the runs.
        work: trains the cells of all runs, one run after the other.
    """

    def __init__(self, runs: Sequence[Run], work: Work) -> None:
        self.runs = runs
        self.work = work
        self._lockstep = Lockstep[int](work)
        self.begin()

    def begin(self) -> None:
        """Let all runs begin with their first round."""
        self.simulations: dict[int, Simulation] = {}
        first_cell = 0
        for number, run in enumerate(self.runs):
            self.simulations[number] = Simulation(run, self.work, first_cell)
            first_cell += run.replicates

    def step(self) -> float | None:
        """Run one round of all runs; return the mean test accuracy if one was evaluated."""
        if all(simulation.done for simulation in self.simulations.values()):
            self.begin()
        records = list[Record]()
        for outcome in self._lockstep.advance(self.simulations).values():
            if isinstance(outcome, BaseException):
                raise outcome
            records += outcome
        found = [r.test_accuracy for r in records if r.test_accuracy is not None]
        return sum(found) / len(found) if found else None


@dataclass
class Rounds:
    """Rounds that are ready to be timed.

    Attributes:
        step: runs one round; returns the test accuracy if it was evaluated.
        engine: the name of the engine that trains; None if that is not known.
        facts: what is known besides, once rounds were timed.
    """

    step: Callable[[], float | None]
    engine: str | None = None
    facts: Callable[[], dict[str, Any]] = dict


def time_rounds(
    step: Callable[[], float | None],
    count: int,
    seconds: float | None = None,
    wait: Callable[[], None] = lambda: None,
    ends: float = math.inf,
) -> dict[str, Any]:
    """Time rounds; return the seconds of each, and the last accuracy.

    Args:
        step: runs one round.
        count: how many rounds there are.
        seconds: for how long rounds are timed after `WARM` of them; None: all of them.
        wait: returns when the device has done what it was told; then a round has ended.
        ends: when no further round should go on, by `time.monotonic`; two are timed
            nevertheless.
    """
    took: list[float] = []
    accuracy = None
    while len(took) < count:
        timed = took[WARM:]
        if seconds is not None and len(timed) >= LEAST and sum(timed) >= seconds:
            break
        if len(took) > 1 and time.monotonic() + took[-1] > ends:
            break
        began = time.perf_counter()
        now = step()
        wait()
        took.append(time.perf_counter() - began)
        accuracy = accuracy if now is None else now
    return {"seconds": took, "accuracy": accuracy}
