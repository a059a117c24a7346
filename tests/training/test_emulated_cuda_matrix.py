"""Every algorithm on every kind of model by every engine, on the emulated device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from helpers.cuda_matrix import ENGINES, small_run
from helpers.emulated_cuda import EmulatedCuda, emulated_cuda
from helpers.matrix import ALGORITHMS, WRAPPERS
from helpers.packs import Played, assert_same, played

from raysafl import Algorithm, FedAvg, Run
from raysafl.runtime import Worker
from raysafl.simulation.simulation import Simulation
from raysafl.training.engines import Graph, Loop, Vmap
from raysafl.training.linear import Linear

EVERY = [*ALGORITHMS, *(wrap(FedAvg()) for wrap in WRAPPERS.values())]


def on_cpu(run: Run) -> Played:
    return play(run, "cpu", "loop")


def play(run: Run, device: str, engine: str) -> Played:
    data = run.data.load()
    work = Worker(run.cells, data, run.model, device=device, engine=engine)
    simulation = Simulation(run, work)
    records: list[Any] = []
    while not simulation.done:
        records += simulation.step()
    return played(records, simulation)


@contextmanager
def no_sync_in_engines(device: EmulatedCuda) -> Iterator[None]:
    """Forbid that an engine waits for the device."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in (Loop, Vmap, Graph, Linear):

            def gradients(*args: Any, original: Any = kind.gradients) -> Any:
                with device.no_sync():
                    return original(*args)

            patch.setattr(kind, "gradients", gradients)
        yield


@pytest.mark.parametrize("model", ENGINES)
@pytest.mark.parametrize("algorithm", EVERY, ids=lambda a: type(a).__name__)
def test_every_engine_on_the_device_equals_the_loop_on_the_cpu(
    algorithm: Algorithm, model: str
) -> None:
    run = small_run(model, algorithm)
    expected = on_cpu(run)
    for engine in ENGINES[model]:
        with emulated_cuda() as device, no_sync_in_engines(device):
            found = play(run, "cuda", engine)
        assert_same(found, expected, exact=False)
