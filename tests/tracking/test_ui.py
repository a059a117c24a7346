"""`raysafl ui`, run as a user does: a process of its own, and a real MLflow server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import RAYSAFL
from helpers.made import end
from helpers.patience import PATIENCE
from helpers.servers import free_port

from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.mlflow_view import MlflowView, write_view
from raysafl.storage.store import Store
from raysafl.tracking.server import serve, server
from raysafl.tracking.tracker import sync

RUN = "0123456789ab"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Path:
    """A folder with one synced sweep of one run."""
    root = tmp_path_factory.mktemp("all results")
    shutil.copy(empty_database, root / "mlflow.db")
    store = made(root, "demo")
    end(store, RUN)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        sync(root, None, print)
    return root


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def ask(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=PATIENCE) as answer:
        content: bytes = answer.read()
        return content


def in_session(leader: int) -> list[int]:
    """The processes whose parent is, or whose session began with, a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z" and leader in (int(parent), int(session)):
            found.append(int(stat.parent.name))
    return found


@pytest.mark.acceptance
def test_ui_shows_runs_and_artifacts_on_a_free_port_and_leaves_no_child(
    root: Path, taken: int
) -> None:
    command = [*RAYSAFL, "ui", str(root), "--port", str(taken)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline(), process.stdout.readline()]
        try:
            assert lines[0].startswith(f"port {taken} is taken, ")
            assert lines[1].startswith("MLflow UI: http://127.0.0.1:")
            assert lines[1].endswith(" (Ctrl-C stops it)\n")
            page = lines[1].split()[2]
            url, _, query = page.partition("/#/experiments/1/runs?")
            assert "viewStateShareKey=raysafl" in query
            assert "workflowType=machine_learning" in query
            assert b"<html" in ask(url)
            body = {"experiment_ids": ["1"], "filter": "tags.`raysafl.kind` = 'child'"}
            (run,) = json.loads(ask(f"{url}/api/2.0/mlflow/runs/search", body))["runs"]
            mlflow_id = run["info"]["run_id"]
            query = (
                f"path=config.json&run_uuid={mlflow_id}"  # what the UI's viewer asks
            )
            assert json.loads(ask(f"{url}/get-artifact?{query}")) == {"lr": 3}
            listed = ask(f"{url}/ajax-api/2.0/mlflow/artifacts/list?run_id={mlflow_id}")
            assert [file["path"] for file in json.loads(listed)["files"]] == [
                "config.json"
            ]
            (child,) = in_session(process.pid)
            assert child in in_session(child)
        finally:
            process.send_signal(signal.SIGINT)
            said = process.stdout.read()
        process.wait(PATIENCE)
    assert said == "MLflow UI stopped\n"
    assert in_session(child) == []


def test_a_folder_without_a_database_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no MLflow database at .*raysafl sync"):
        serve(tmp_path)


def made(path: Path, name: str, uri: str = "", experiment: str = "7") -> Store:
    """A folder of a sweep of which nothing has run, and which MLflow may show at a URI."""
    store = Store(path / name)
    store.create()
    entry = Entry(run_id=RUN, labels={"q": 0.5}, config={"lr": 3})
    store.write_manifest(
        Manifest(name=name, axes=["q"], entries=[entry], table=Table(rows=["q"]))
    )
    if uri:
        write_view(store, MlflowView(uri, experiment, "parent"))
    return store


def test_a_server_named_in_the_environment_is_pointed_to_with_its_pages_of_the_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "https://mlflow.example.org/x"
    plain = f"MLflow UI: {url}/#/experiments?workflowType=machine_learning ("
    page = (
        f"{url}/#/experiments/7/runs?viewStateShareKey=raysafl"
        "&workflowType=machine_learning"
    )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    serve(tmp_path)
    assert capsys.readouterr().out.startswith(plain)
    store = made(tmp_path, "demo", url)
    # The folder of the sweep, and the folder that holds it.
    for path in (store.path, tmp_path):
        serve(path)
        assert capsys.readouterr().out.startswith(f"MLflow UI: {page} (")
    made(tmp_path, "other", url, "8")
    made(tmp_path, "third", "sqlite:///other.db")
    serve(tmp_path)
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(plain)
    other = page.replace("/7/", "/8/")
    shown = [f"demo: {page}", f"other: {other}", "third: logged to sqlite:///other.db"]
    assert lines == [f"  {line}" for line in shown]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ann:secret@mlflow.example.org/x")
    with pytest.raises(ValueError, match="holds a password") as error:
        serve(tmp_path)
    assert "secret" not in str(error.value)


def test_an_address_of_another_machine_is_refused(root: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot listen on 192\.0\.2\.1:5000"):
        serve(root, "192.0.2.1")


def test_of_a_server_that_ends_before_it_answers_the_log_is_shown_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri, secret = "postgresql://ann@host/db", "hunter2hunter2"
    monkeypatch.setenv("PGPASSWORD", secret)
    ends = [sys.executable, "-c", f"print('no memory at {uri}, nor for {secret}')"]
    monkeypatch.setattr("raysafl.tracking.server._command", lambda *_: ends)
    with pytest.raises(RuntimeError) as error, server(uri, "127.0.0.1", free_port()):
        pass
    said = "no memory at postgresql://ann@host/db, nor for ***"
    assert str(error.value) == f"the MLflow server did not start:\n{said}"


def test_a_server_that_dies_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "health").touch()
    port = free_port()
    answers = [sys.executable, "-m", "http.server", str(port), "-d", str(tmp_path)]
    monkeypatch.setattr("raysafl.tracking.server._command", lambda *_: answers)
    with pytest.raises(RuntimeError, match="ended by itself"):
        with server("sqlite:///any.db", "127.0.0.1", port) as (process, _):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
