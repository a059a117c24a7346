"""A real MLflow server that is killed and started again while a sweep logs to it."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from helpers.servers import free_port, process

from raysafl import Hardware, Run, Runner, Sweep
from raysafl.tracking.client import connect
from raysafl.tracking.server import ENVIRONMENT
from raysafl.tracking.tracker import sync

ROUNDS = 150


class Server:
    """MLflow's own, on a port and a database that stay."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        options = {
            "--workers": "1",
            "--host": "127.0.0.1",
            "--port": str(port),
            "--artifacts-destination": str(folder),
            "--backend-store-uri": f"sqlite:///{folder}/mlflow.db",
        }
        words = [word for option in options.items() for word in option]
        self._command = [sys.executable, "-m", "mlflow", "server", *words]
        self._running = ExitStack()

    def start(self) -> None:
        server = process(*self._command, url=f"{self.url}/health", env=ENVIRONMENT)
        self._running.enter_context(server)

    def close(self) -> None:
        """SIGKILL, to all its processes."""
        self._running.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with closing(Server(tmp_path)) as server:
        server.start()
        yield server


@pytest.mark.acceptance
def test_a_server_killed_and_started_again_during_a_sweep_ends_with_everything_once(
    server: Server, tiny: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    runs = {(i,): tiny.replace(seed=i, rounds=ROUNDS) for i in range(6)}
    sweep = Sweep("restarted", runs, axes=("i",))
    options = {
        "tracking_uri": server.url,
        "quiet": True,
        # Runs that share a pack would all end at the same time.
        "hardware": Hardware(pack=1),
        "executor": "here",
    }
    runner = Runner(sweep, tmp_path / "s", **options)  # type: ignore[arg-type]
    told = []

    def disturb() -> None:
        deadline = time.monotonic() + 240
        while not runner.store.ledger() and time.monotonic() < deadline:
            time.sleep(0.05)
        told.append(len(runner.store.ledger()))
        server.close()
        server.start()

    (tmp_path / "s").mkdir()
    other = threading.Thread(target=disturb)
    other.start()
    outcome = runner.run()
    other.join()
    assert outcome.ok and told and told[0] < len(runs)
    for _ in range(2):  # the second time changes nothing
        assert sync(tmp_path / "s", server.url, lambda message: None) == len(runs)
        _check_once(server.url, len(runs))


def _check_once(url: str, runs: int) -> None:
    client = connect(url)
    experiment = client.get_experiment_by_name("restarted")
    assert experiment
    found = list(client.search_runs([experiment.experiment_id]))
    kinds = [run.data.tags["raysafl.kind"] for run in found]
    assert sorted(kinds) == [*["child"] * runs, "parent"]
    assert {run.info.status for run in found} == {"FINISHED"}
    for run in found:
        if run.data.tags["raysafl.kind"] == "child":
            points = client.get_metric_history(run.info.run_id, "test/accuracy")
            # Of 150 rounds, every second is shown.
            steps = sorted(point.step for point in points)
            assert steps == list(range(1, ROUNDS, 2))
