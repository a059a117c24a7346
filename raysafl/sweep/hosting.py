"""Hosts the clients of runs in this process: one seam for all that computes rounds here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from raysafl.core.problem import Dataset
from raysafl.runtime.in_process import Worker
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.training.resident import Resident


def simulation_of(
    run: Run, dataset: Dataset, engine: str = "auto", device: str = "cpu"
) -> Simulation:
    """Return a run's rounds, to be carried out in this process without a folder.

    Args:
        run: the run.
        dataset: its dataset.
        engine: the engine's name, or "auto".
        device: the torch device that trains and evaluates.
    """
    return Simulation(run, worker_of([run], dataset, engine, device))


def worker_of(
    runs: Sequence[Run],
    dataset: Dataset,
    engine: str = "auto",
    device: str = "cpu",
    resident: Resident | None = None,
    device_share: float = 1.0,
) -> Worker:
    """Host the cells of runs in this process.

    Args:
        runs: runs with one dataset, model, objective and batch size.
        dataset: the dataset.
        engine: the engine's name, or "auto".
        device: the torch device that trains and evaluates.
        resident: what is on the device already; None if nothing is.
        device_share: the part of a GPU's memory that this process may take.
    """
    first = runs[0]
    return Worker(
        [cell for run in runs for cell in run.cells],
        dataset,
        first.model,
        device,
        engine,
        first.objective,
        resident,
        device_share,
    )


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use a number of threads for as long as the block runs.

    On a busy machine each product waits for the slowest of its threads, which have no
    core of their own: steps of small networks take several times as long with two.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
