"""Shared by all tests: small real data, and one local Ray for those that need it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raysafl import (
    SGD,
    Absent,
    ClassesPerClient,
    FedAvg,
    Federation,
    IidServer,
    Logistic,
    Run,
)

torch.set_num_threads(1)
os.environ["RAYSAFL_CACHE"] = tempfile.mkdtemp()  # Ray's workers inherit it
CHAOS = pytest.StashKey[list[str]]()  # lines for the summary
SHARED = Path(__file__).parents[2] / "shared" / "data"


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much chaos: see test_chaos.py."""
    parser.addoption("--chaos", type=int, default=20, help="kills in the chaos test")
    parser.addoption("--chaos-seed", type=int, default=0, help="seed of its schedule")


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
    from raysafl.sweep.tuning import ray_session

    with ray_session(None):
        yield


@pytest.fixture
def tiny() -> Run:
    """Digits, 10 clients of one class each, 4 rounds: a real run of a few milliseconds."""
    return Run(
        data=Federation(partition=ClassesPerClient(p=1), server=IidServer(n0=50)),
        model=Logistic(),
        algorithm=FedAvg(),
        participation=Absent(s=4, m=3),
        local=SGD(lr=0.1, batch_size=32, epochs=1),
        rounds=4,
        replicates=2,
    )


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
