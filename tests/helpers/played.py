"""Runs that are carried out in this process, without a sweep."""

from torch import Tensor

from raysafl import Run
from raysafl.core.record import Record
from raysafl.runtime.in_process import Worker
from raysafl.simulation.simulation import Simulation


def simulation(run: Run) -> Simulation:
    """The simulation of a run before its first round."""
    data = run.data.load()
    worker = Worker(run.cells, data, run.model, objective=run.objective)
    return Simulation(run, worker)


def finish(sim: Simulation) -> list[Record]:
    """The records of all rounds that are left."""
    records: list[Record] = []
    while not sim.done:
        records += sim.step()
    return records


def played(run: Run) -> tuple[Simulation, list[Record]]:
    """The simulation of a run after its last round, and its records."""
    sim = simulation(run)
    return sim, finish(sim)


def final(run: Run) -> Tensor:
    """The parameters with which the first replicate of a run ends."""
    return played(run)[0].replicates[0].state.w_P
