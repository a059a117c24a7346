"""Shared by all tests: small real data, and one local Ray for those that need it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from raysafl import (
    Absent,
    ClassesPerClient,
    FedAvg,
    Federation,
    IidServer,
    LocalTraining,
    Logistic,
    Run,
)

torch.set_num_threads(1)
settings.register_profile("raysafl", deadline=None)  # a first example may compile a loop
settings.load_profile("raysafl")
os.environ["RAYSAFL_CACHE"] = tempfile.mkdtemp()  # Ray's workers inherit it
CHAOS = pytest.StashKey[list[str]]()  # lines for the summary
SWEEPS = {  # half of the time of all tests
    *("test_cli", "test_fleet", "test_leaks", "test_nodes", "test_readme", "test_runtime"),
    *("test_scaling", "test_sweep", "test_tracking_server", "test_trial", "test_ui"),
}
SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much chaos: see test_chaos.py."""
    parser.addoption("--chaos", type=int, default=20, help="kills in the chaos test")
    parser.addoption("--chaos-seed", type=int, default=0, help="seed of its schedule")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark half of the time."""
    for item in items:
        if item.path.stem in SWEEPS:
            item.add_marker("sweeps")


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """What the chaos test did."""
    for line in config.stash.get(CHAOS, []):
        terminalreporter.write_line(f"chaos: {line}")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's settings must not reach the tests."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("RAYSAFL_DATA", raising=False)


@pytest.fixture
def shared_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of real datasets; the test is skipped, saying so, where there is none."""
    if not SHARED.is_dir():
        pytest.skip("real data (../shared/data) is not here")
    monkeypatch.setenv("RAYSAFL_DATA", str(SHARED))
    return SHARED


@pytest.fixture(scope="session")
def ray_local() -> Iterator[None]:
    """One real Ray cluster on this machine for all tests that need it."""
    from raysafl.runtime.ray_session import ray_session

    with ray_session(None):
        yield


def kill_actor(actor: Any) -> None:
    """Kill it and wait for that: `ray.kill` only asks, it may finish a round before it dies."""
    import ray

    ray.kill(actor)
    with pytest.raises(ray.exceptions.RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote())


@pytest.fixture
def tiny() -> Run:
    """Digits, 10 clients of one class each, 4 rounds: a real run of a few milliseconds."""
    return Run(
        data=Federation(partition=ClassesPerClient(p=1), server=IidServer(n0=50)),
        model=Logistic(),
        algorithm=FedAvg(),
        participation=Absent(s=4, m=3),
        local=LocalTraining(lr=0.1, batch_size=32, epochs=1),
        rounds=4,
        replicates=2,
    )


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture(scope="session")
def real_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`results/` with a quarter of the quickstart, really run in this process, with its report.

    8 runs, 3 seeds, 30 rounds. Shared by tests: do not write into it.
    """
    from raysafl.quickstart import SWEEP
    from raysafl.report.write import write_report
    from raysafl.runtime.in_process import Worker
    from raysafl.storage.runs_table import collect
    from raysafl.storage.store import Store
    from raysafl.sweep.definition import Sweep
    from raysafl.sweep.session import in_process

    runs = {
        key: run.replace(rounds=30, replicates=3)
        for key, run in SWEEP.labelled().items()
        if key[0] != 2 and key[2] != 10
    }
    sweep = Sweep(SWEEP.name, runs=runs, axes=SWEEP.axes, table=SWEEP.table, title=SWEEP.title)
    store = Store(tmp_path_factory.mktemp("real") / "results" / "quickstart")
    store.create()
    store.write_manifest(sweep.manifest().replace(command="raysafl quickstart"))
    for run in runs.values():
        in_process(run, store, Worker(run.data, run.data.load(), run.model, run.seeds))
    collect(store)
    write_report(store)
    return store.path.parent
