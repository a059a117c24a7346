"""Packs of runs with one replicate each, the same runs alone, and where the two differ.

A run alone is a group of one replicate, whose round is not lifted: what it computes is what
each replicate of a group has to compute.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

from torch import Tensor

from helpers.checkpoints import dump, restore
from helpers.packs import simulations, worker_of
from raysafl import Run
from raysafl.core.record import Record
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Lockstep, Simulation


class Ended(NamedTuple):
    """What is left of a run of one replicate.

    Args:
        rows: Its records without the wall time.
        tensors: Its parameters, what server and clients keep, and the model that it keeps.
        round: The number of rounds that it has taken part in.
        reason: Why it has ended before its last round; empty if it has not.
    """

    rows: list[dict[str, Any]]
    tensors: dict[str, Tensor]
    round: int
    reason: str


class Pack:
    """Runs that advance together in this process.

    Args:
        runs: Runs of one replicate, one dataset, one model and one objective.
        engine: The name of the engine.

    Attributes:
        lockstep: Advances them.
        simulations: The simulation of each run.
        records: The records of each run so far.
        failed: Why runs have failed.
    """

    def __init__(self, runs: Mapping[str, Run], engine: str = "auto") -> None:
        self.work = _worker(runs, engine)
        self.simulations = simulations(runs, self.work)
        self.records: dict[str, list[Record]] = {name: [] for name in runs}
        self.failed: dict[str, BaseException] = {}
        self.lockstep = Lockstep[str](self.work)

    def advance(self, rounds: float = math.inf) -> None:
        """Advance all runs that have not ended by so many rounds."""
        while rounds > 0 and (running := self.running()):
            rounds -= 1
            self.advance_some(running)

    def advance_some(self, some: Mapping[str, Simulation]) -> None:
        """Advance some runs that have not ended by one round."""
        for name, outcome in self.lockstep.advance(some).items():
            if isinstance(outcome, BaseException):
                self.failed[name] = outcome
            else:
                self.records[name] += outcome

    def running(self) -> dict[str, Simulation]:
        """Return the simulations of the runs that have not ended."""
        return {
            name: simulation
            for name, simulation in self.simulations.items()
            if not simulation.done and name not in self.failed
        }

    def go_on_in(self, other: "Pack") -> None:
        """Let the runs of another pack that are in this one go on from their checkpoints."""
        for name in self.simulations.keys() & other.simulations.keys():
            restore(other.simulations[name], dump(self.simulations[name]))
            other.records[name] = list(self.records[name])

    def ended(self) -> dict[str, Ended]:
        """Return what is left of the runs that have not failed."""
        return {
            name: _ended(self.records[name], simulation)
            for name, simulation in self.simulations.items()
            if name not in self.failed
        }


def together(runs: Mapping[str, Run], engine: str = "auto") -> dict[str, Ended]:
    """Return what is left of runs that advance together, of which none may fail."""
    pack = Pack(runs, engine)
    pack.advance()
    assert not pack.failed, pack.failed
    return pack.ended()


def alone(runs: Mapping[str, Run], engine: str = "auto") -> dict[str, Ended]:
    """Return what is left of runs of which each takes all of its rounds by itself."""
    ended = {}
    for name, simulation in simulations(runs, _worker(runs, engine)).items():
        records: list[Record] = []
        while not simulation.done:
            records += simulation.step()
        ended[name] = _ended(records, simulation)
    return ended


def differences(
    some: Mapping[str, Ended], others: Mapping[str, Ended]
) -> dict[str, list[str]]:
    """Return of each run that ended in two ways what differs, to the last bit."""
    assert some.keys() == others.keys()
    found = {name: list(_differences(some[name], others[name])) for name in some}
    return {name: words for name, words in found.items() if words}


def assert_equal_to_themselves_alone(
    runs: Mapping[str, Run], engine: str = "auto"
) -> None:
    """Assert that runs together have the rows, parameters and memories of each alone."""
    assert differences(together(runs, engine), alone(runs, engine)) == {}


def _worker(runs: Mapping[str, Run], engine: str) -> Worker:
    assert all(run.replicates == 1 for run in runs.values())
    work: Worker = worker_of(runs, engine)
    return work


def _ended(records: list[Record], simulation: Simulation) -> Ended:
    rows = [asdict(record) for record in records]
    for row in rows:
        del row["seconds"]
    (replicate,) = simulation.replicates
    state = replicate.state
    tensors = {
        "parameters": state.w_P,
        **{f"server's {name}": value for name, value in state.server.items()},
        **{f"vector of client {i}": row_P for i, row_P in state.clients.items()},
    }
    for model in simulation.kept().values():
        tensors["kept model"] = model.w_P
    # A tensor that others share would go on changing with them.
    copied = {name: tensor.clone() for name, tensor in tensors.items()}
    return Ended(rows, copied, replicate.round, replicate.diverged or replicate.stopped)


def _differences(one: Ended, other: Ended) -> Iterator[str]:
    if one.tensors.keys() != other.tensors.keys():
        yield f"memories {sorted(one.tensors.keys() ^ other.tensors.keys())}"
    for name in one.tensors.keys() & other.tensors.keys():
        if not _are_equal(one.tensors[name], other.tensors[name]):
            yield name
    if (one.round, one.reason) != (other.round, other.reason):
        yield f"end in round {one.round} ({one.reason}), {other.round} ({other.reason})"
    if len(one.rows) != len(other.rows):
        yield f"{len(one.rows)} rows, not {len(other.rows)}"
    for row, other_row in zip(one.rows, other.rows, strict=False):
        for column, value in row.items():
            # NaN stands where the training loss of a run that diverges is none any more.
            if repr(value) != repr(other_row[column]):
                yield f"round {row['round']}, {column}: {value}, not {other_row[column]}"


def _are_equal(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    # NaN equals NaN, but not another number.
    both_nan = (one != one) & (other != other)
    return bool(((one == other) | both_nan).all())
