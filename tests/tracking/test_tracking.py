"""MLflow shows what the Parquet holds: real databases, a real server, nothing mocked."""

import json
import math
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.made import end, save
from helpers.patience import PATIENCE
from helpers.servers import free_port
from helpers.tracked import (
    A,
    B,
    View,
    complete,
    rows,
    sweep,
    uri_of,
    with_config,
    with_run,
)

from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.mlflow_view import MlflowView, read_view
from raysafl.storage.store import Store
from raysafl.tracking.choice import Tracking
from raysafl.tracking.client import connect, default_uri, disconnect
from raysafl.tracking.descriptions import saved_view
from raysafl.tracking.projection import Projection
from raysafl.tracking.tracker import Tracker, sync


def first_view(view: Any, run_id: str) -> View:
    """MLflow as soon as another thread has logged rounds of a run."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            now: View = view()
            assert "test/accuracy" in now.children[run_id].data.metrics
            return now
        except (AssertionError, KeyError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def log(store: Store, *run_ids: str) -> None:
    """One process that logs runs while they run."""
    with closing(Projection(store, uri_of(store))) as projection:
        projection.sync_runs(run_ids)


@pytest.fixture(scope="module")
def synced(
    tmp_path_factory: pytest.TempPathFactory, empty_database: Path
) -> Iterator[tuple[Store, View]]:
    """A sweep of two finished runs, whose report is very long, and what MLflow has of it."""
    root = tmp_path_factory.mktemp("synced")
    shutil.copy(empty_database, root / "mlflow.db")
    store = sweep(root / "demo")
    complete(store, kind="server")
    (store.path / "report.html").write_text("<html>")
    (store.path / "table.md").write_text("# A demo\n\n| q | final |\n" + "x" * 9000)
    (store.path / "curves.png").write_bytes(b"PNG")
    assert sync(store.path, None, print) == 2
    now = View(uri_of(store))
    yield store, now
    disconnect(now.client)


def test_curves_are_means_over_replicates_and_running_sums(
    synced: tuple[Store, View],
) -> None:
    _, now = synced
    assert len(now.parents) == 1 and set(now.children) == {A, B}
    accuracy = now.points(A, "test/accuracy")
    assert accuracy == [(t, pytest.approx(t / 10 + 0.1)) for t in range(5)]
    assert now.points(A, "work/bytes_down") == [(t, 400.0 * (t + 1)) for t in range(5)]
    assert now.points(A, "work/server_rounds") == [(t, t + 1.0) for t in range(5)]
    assert now.points(A, "train/loss") == [(t, 2.0) for t in range(5)]
    # MLflow draws a section of charts for each prefix, in the order of the alphabet, and
    # then the names without one.
    names = now.children[A].data.metrics
    sections = sorted({name.partition("/")[0] for name in names if "/" in name})
    assert sections == ["test", "train", "work"]
    single = {name for name in names if "/" not in name}
    assert single == {"final", "last10", "best", "after_server", "total_bytes"}


def test_an_ended_run_has_its_parameters_tags_files_times_and_summary(
    synced: tuple[Store, View],
) -> None:
    _, now = synced
    run = now.children[A]
    params = {"algorithm": "SAFARI", "algorithm.client_prob": "0.5", "label.q": "0.5"}
    assert params.items() <= run.data.params.items()
    assert len(run.data.params["note"]) == 6000
    told = {
        "mlflow.parentRunId": now.parents[0].info.run_id,
        "mlflow.source.git.commit": "abc123",
        "mlflow.source.name": "raysafl run demo",
        # The standard deviation of two numbers that are 0.2 apart is sqrt(0.02).
        "result": "final 50.00 ± 14.14 %",
        "label.q": "0.5",
        "status": "finished",
        "commit": "abc123",
        "host": "box",
        "device": "cpu",
        "reason": "",
    }
    assert told.items() <= run.data.tags.items()
    assert run.info.run_name == "q=0.5" and run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 12500
    started = pd.Timestamp(run.info.start_time, unit="ms")
    assert started == pd.Timestamp("2026-11-21 02:00")
    means = {"final": 0.5, "after_server": 0.3, "total_bytes": 2500}
    metrics = run.data.metrics
    assert {name: metrics[name] for name in means} == pytest.approx(means)
    assert now.files(run.info.run_id) == ["config.json", "statistics.json"]
    file = now.client.download_artifacts(run.info.run_id, "statistics.json")
    found = json.loads(Path(file).read_text())
    spread = pytest.approx(math.sqrt(0.02))
    assert found["final"] == {"mean": pytest.approx(0.5), "std": spread}
    assert found["total_bytes_down"] == {"mean": 2000, "std": 0}


def test_the_parent_has_the_table_the_page_the_note_and_counts(
    synced: tuple[Store, View],
) -> None:
    store, now = synced
    (parent,) = now.parents
    assert parent.info.status == "FINISHED" and not parent.data.metrics
    number, mlflow_id = now.experiment.experiment_id, parent.info.run_id
    assert read_view(store) == MlflowView(uri_of(store), number, mlflow_id)
    note = parent.data.tags["mlflow.note.content"]
    title, links, *_ = note.split("\n\n")
    assert title == "### A demo" and str(store.path / "report.html") in links
    page = f"#/experiments/{number}/runs/{mlflow_id}/artifacts/report.html"
    assert f"[Report]({page}" in links
    assert "\n\n| q | final |\n" in note and "among the artifacts)" in note
    assert note.endswith(Tracking.CURVES.note) and len(note) <= 8000
    assert now.experiment.tags["mlflow.note.content"] == note.removeprefix("### ")
    files = ["curves.png", "manifest.json", "report.html", "table.md"]
    assert now.files(mlflow_id) == files
    tags = {"raysafl.sweep": "demo", "runs.finished": "2", "runs.failed": "0"}
    assert tags.items() <= parent.data.tags.items()


def test_the_saved_view_lists_the_runs_the_best_one_first_with_its_labels(
    synced: tuple[Store, View],
) -> None:
    _, now = synced
    saved = json.loads(now.experiment.tags["mlflow.sharedViewState.raysafl"])
    state = json.loads(saved["state"])
    assert state["orderByKey"] == "metrics.`final`" and not state["orderByAsc"]
    assert {"params.`label.q`", "metrics.`final`"} <= set(state["selectedColumns"])
    # A name that MLflow does not allow.
    table = Table(rows=["acc@5 (%)"], statistic="final_mae")
    odd = Manifest(name="a", axes=["acc@5 (%)"], entries=[], table=table)
    state = json.loads(json.loads(saved_view(odd, 0))["state"])
    assert "params.`label.acc_5 ___`" in state["selectedColumns"]


def test_syncing_again_adds_nothing(store: Store, view: Any) -> None:
    complete(store)
    with_run(store, "cccccccccccc")
    save(store, "cccccccccccc", rows(0, 2))
    assert sync(store.path, None, print) == 3
    before = view()
    assert sync(store.path.parent, None, print) == 3
    after = view()
    assert after.all_points() == before.all_points() > 80
    assert {k: r.info.run_id for k, r in after.children.items()} == {
        k: r.info.run_id for k, r in before.children.items()
    }
    assert [r.info.run_id for r in after.parents] == [
        r.info.run_id for r in before.parents
    ]
    for run_id, run in before.children.items():
        assert after.children[run_id].to_dictionary() == run.to_dictionary()


def test_a_run_whose_rows_were_replaced_is_replaced_in_mlflow(
    store: Store, view: Any
) -> None:
    complete(store)
    sync(store.path, None, print)
    first = view()
    store.forget({*store.manifest().entries[0].cells})
    save(store, A, rows(0, 2, test_accuracy=0.9))
    log(store, A)
    second = view()
    assert second.points(A, "test/accuracy") == [(0, 0.9), (1, 0.9)]
    assert second.children[A].info.run_id != first.children[A].info.run_id
    assert second.children[B].info.run_id == first.children[B].info.run_id
    # Another process logs a run as a whole, too, that one has begun to log.
    save(store, A, rows(0, 5))
    log(store, A)
    third = view()
    assert [step for step, _ in third.points(A, "test/accuracy")] == [0, 1, 2, 3, 4]
    assert third.children[A].info.status == "RUNNING"


def test_a_run_that_is_given_more_seeds_is_logged_anew_as_one_run(
    store: Store, view: Any
) -> None:
    complete(store)
    sync(store.path, None, print)
    first = view()
    with_config(store, replicates=3)
    third = rows(0, 5, replicate=2, seed=2, test_accuracy=0.9)[:5]
    with closing(Projection(store, uri_of(store))) as projection:
        # The mean over all seeds is known as far as the last one has come.
        save(store, A, third[:2])
        projection.sync_runs([A])
        grown = [(t, pytest.approx((0.9 + 0.2 * t + 0.2) / 3)) for t in range(5)]
        assert view().points(A, "test/accuracy") == grown[:2]
        end(store, A, third, replicates=[2])
        projection.sync_runs([A])
    second = view()
    assert second.points(A, "test/accuracy") == grown
    assert second.children[A].data.params["replicates"] == "3"
    assert second.children[A].info.run_id != first.children[A].info.run_id
    assert len(second.children) == 2 and second.children[A].info.status == "FINISHED"


def test_an_experiment_deleted_in_the_ui_is_logged_anew_and_stays_deleted(
    store: Store, view: Any
) -> None:
    complete(store)
    sync(store.path, None, print)
    first = view()
    client, old = first.client, first.experiment.experiment_id
    client.delete_experiment(old)
    for _ in range(2):
        sync(store.path, None, print)
        now = view()
        assert set(now.children) == {A, B} and now.experiment.experiment_id != old
    deleted = client.get_experiment(old)
    assert deleted.lifecycle_stage == "deleted"
    assert deleted.name == f"demo (deleted {old})"


def test_two_folders_of_one_name_are_one_sweep_as_the_folder_logged_last_has_it(
    store: Store, tmp_path: Path, view: Any
) -> None:
    other = sweep(tmp_path / "other" / "demo")
    third = "cccccccccccc"
    complete(store)
    with_run(other, third)
    save(other, A, rows(0, 3, test_accuracy=0.7))
    save(other, third, rows(0, 2))
    uri = uri_of(store)
    for folder, accuracy in ((store, 0.5), (other, 0.7), (store, 0.5)):
        sync(folder.path, uri, print)
        now = view()
        assert now.points(A, "test/accuracy")[-1][1] == pytest.approx(accuracy)
    # What only one of them has stays.
    assert set(now.children) == {A, B, third} and len(now.parents) == 1


@pytest.mark.parametrize("bring", [shutil.move, shutil.copytree])
def test_a_results_folder_that_was_moved_or_copied_gets_artifacts_where_it_is(
    bring: Any, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    complete(store)
    sync(store.path, None, print)
    before = sorted(store.path.parent.rglob("*"))
    there = tmp_path_factory.mktemp("there") / "results of may"
    bring(store.path.parent, there)
    sync(there, None, print)
    now = View(default_uri(there))
    assert now.experiment.artifact_location == (there / "mlartifacts").as_uri()
    assert now.files(now.children[A].info.run_id) == ["config.json", "statistics.json"]
    assert len(now.children) == 2
    left = [] if bring is shutil.move else before
    assert sorted(store.path.parent.rglob("*")) == left
    disconnect(now.client)


def test_numbers_that_are_not_finite_are_left_out(store: Store, view: Any) -> None:
    part = rows(0, 3, train_accuracy=math.nan)
    for row in part:
        if row["round"] == 1:
            row |= {"test_accuracy": math.nan, "test_loss": math.inf}
    save(store, A, part)
    log(store, A)
    now = view()
    for name, rounds in (("test/accuracy", [0, 2]), ("test/loss", [0, 2])):
        assert [step for step, _ in now.points(A, name)] == rounds
    assert now.points(A, "train/accuracy") == []


def test_failed_diverged_and_waiting_runs_say_so(store: Store, view: Any) -> None:
    third = "cccccccccccc"
    with_run(store, third)
    end(store, A, rows(0, 1), "failed", reason="worker died")
    end(store, B, (), "diverged", reason="loss is NaN in round 1")
    save(store, third, rows(0, 1))
    sync(store.path, None, print)
    now = view()
    assert now.points(A, "test/accuracy") and not now.children[B].data.metrics
    ends = {
        key: (r.info.status, r.data.tags["status"]) for key, r in now.children.items()
    }
    assert ends == {
        A: ("FAILED", "failed"),
        B: ("FINISHED", "diverged"),
        third: ("KILLED", "waiting"),
    }
    reasons = [now.children[i].data.tags["reason"] for i in (A, third)]
    assert reasons == ["2 of 2 seeds: worker died", "2 of 2 seeds: after 1 of 5 rounds"]
    assert now.parents[0].info.status == "KILLED"
    waiting = now.children[third]
    started = pd.Timestamp(waiting.info.start_time, unit="ms")
    assert started == pd.Timestamp("2026-11-21 02:00")
    assert waiting.data.params["algorithm.client_prob"] == "0.5"


def test_what_diverged_is_in_no_mean_of_final_statistics(
    store: Store, view: Any
) -> None:
    every = rows(0, 1)
    end(store, A, [r for r in every if not r["replicate"]], replicates=[0])
    other = [r for r in every if r["replicate"]]
    end(store, A, other, "diverged", replicates=[1])
    sync(store.path, None, print)
    run = view().children[A]
    assert run.data.metrics["final"] == every[0]["test_accuracy"]
    assert run.data.tags["result"].endswith(" %") and "±" not in run.data.tags["result"]


def test_names_that_mlflow_refuses_are_rewritten(store: Store, view: Any) -> None:
    config = {"a(b)": 1, "many": {f"p{i}": i for i in range(150)}}
    entry = Entry(run_id=A, labels={"acc@5 (%)": "x"}, config=config)
    manifest = Manifest(
        name="demo", axes=["acc@5 (%)"], entries=[entry], table=Table(rows=[])
    )
    store.write_manifest(manifest)
    end(store, A, reason="y" * 9000)
    sync(store.path, None, print)
    run = view().children[A]
    assert run.data.tags["label.acc_5 ___"] == "x"
    assert len(run.data.tags["reason"]) == 8000
    assert run.data.params["a_b_"] == "1" and run.data.params["many.p149"] == "149"


def test_the_tracker_logs_while_runs_run_and_at_the_end_and_is_quiet(
    store: Store, view: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []
    tracker = Tracker(store, uri_of(store), said.append)
    save(store, A, rows(0, 3))
    tracker.submit([A])
    now = first_view(view, A)
    assert [step for step, _ in now.points(A, "test/accuracy")] == [0, 1, 2]
    params = {"rounds": "5", "label.q": "0.5"}
    assert params.items() <= now.children[A].data.params.items()
    assert now.parents[0].info.status == now.children[A].info.status == "RUNNING"
    complete(store)
    for _ in range(50):
        tracker.submit([A])
    assert tracker.finish() and tracker.finish()
    last = view()
    assert [step for step, _ in last.points(A, "test/accuracy")] == [0, 1, 2, 3, 4]
    assert last.children[B].info.status == last.parents[0].info.status == "FINISHED"
    assert said == [] and capfd.readouterr() == ("", "")


def test_a_dead_server_is_told_once_and_repaired_by_sync(
    store: Store, view: Any
) -> None:
    said: list[str] = []
    uri = f"http://127.0.0.1:{free_port()}"
    complete(store)
    tracker = Tracker(store, uri, said.append)
    tracker.submit([A, B])
    tracker.submit([A])
    assert not tracker.finish() and not tracker.finish()
    (line,) = said
    assert uri in line
    assert (
        f"`raysafl sync {store.path} --tracking-uri={uri}`" in line
        and "Parquet are complete" in line
    )
    assert sync(store.path, None, print) == 2
    assert len(view().points(B, "test/accuracy")) == 5


def test_a_database_is_there_only_when_all_of_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or a kill while MLflow makes its tables, leaves none."""
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def full(*_: object, **options: object) -> None:
        assert [file.name for file in tmp_path.glob(".mlflow-*/*")] == ["mlflow.db"]
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched, pytest.raises(sqlite3.OperationalError):
        patched.setattr("mlflow.MlflowClient.search_experiments", full)
        connect(uri)
    assert [file.name for file in tmp_path.iterdir()] == [".mlflow.db.lock"]
    disconnect(connect(uri))
    assert (tmp_path / "mlflow.db").is_file() and not list(tmp_path.glob(".mlflow-*"))


def test_finish_returns_although_a_server_is_silent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it never accepts
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert not Tracker(store, uri, said.append).finish()
    assert len(said) == 1 and f"MLflow at {uri} failed" in said[0]


def test_sync_says_what_is_wrong(store: Store, tmp_path: Path) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ValueError, match=rf"MLflow at {uri} cannot be used"):
        sync(store.path, uri, print)
    with pytest.raises(ValueError, match="holds a password"):
        sync(store.path, uri.replace("127", "ann:secret@127"), print)
    (tmp_path / "broken.db").write_text("this is no database")
    with pytest.raises(ValueError, match=r"cannot be used: .*not a database"):
        sync(store.path, f"sqlite:///{tmp_path / 'broken.db'}", print)


def test_sync_leaves_out_a_sweep_that_is_running(store: Store) -> None:
    complete(store)
    other = sweep(store.path.parent / "other", "other")
    save(other, A, rows(0, 2))
    said: list[str] = []
    with store.lock():
        assert sync(store.path.parent, None, said.append) == 1
    assert f"{store.path} is left out" in said[0]
    assert f"{other.path}: 1 run in MLflow" in said[1]


def test_the_address_is_the_environment_s_or_beside_the_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_uri(Path("results")) == f"sqlite:///{tmp_path}/results/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5001")
    assert default_uri(Path("results")) == "http://127.0.0.1:5001"
