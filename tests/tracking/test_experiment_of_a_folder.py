"""Folders whose sweeps have one name log to one database, each to its own experiment."""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from helpers.here import run_in_process
from helpers.made import save
from helpers.tracked import A, B, complete, rows, sweep

from raysafl import Run, Sweep
from raysafl.runtime.in_process import Worker
from raysafl.storage.store import Store
from raysafl.tracking.client import connect, default_uri, disconnect
from raysafl.tracking.experiment import folder_id
from raysafl.tracking.projection import Projection
from raysafl.tracking.sync import sync
from raysafl.tracking.tracker import Tracker


@pytest.fixture
def uri(tmp_path: Path, tables: Path) -> str:
    """The database that all folders of a test log to."""
    (tmp_path / "shared").mkdir()
    shutil.copy(tables, tmp_path / "shared" / "mlflow.db")
    return default_uri(tmp_path / "shared")


@pytest.fixture
def client(uri: str) -> Iterator[Any]:
    client = connect(uri)
    yield client
    disconnect(client)


def logged(client: Any) -> dict[str, dict[str, Any]]:
    """What MLflow shows: each experiment's runs, as dictionaries, by our ids of them."""
    found = {}
    for experiment in client.search_experiments():
        runs = client.search_runs([experiment.experiment_id])
        named = {r.data.tags.get("raysafl.run_id", "parent"): r for r in runs}
        assert len(named) == len(runs)
        if named:
            found[experiment.name] = {k: r.to_dictionary() for k, r in named.items()}
    return found


def final(runs: dict[str, Any], run_id: str = A) -> float:
    return float(runs[run_id]["data"]["metrics"]["final"])


def quiet(message: str) -> None:
    """Say nothing."""


def two(tmp_path: Path) -> tuple[Store, Store]:
    """Sibling folders with finished sweeps of one name, runs and times, but other rows."""
    ours, theirs = sweep(tmp_path / "a" / "demo"), sweep(tmp_path / "b" / "demo")
    complete(ours)
    complete(theirs, test_accuracy=0.7)
    return ours, theirs


def first_synced(tmp_path: Path, uri: str) -> Store:
    """A folder with a finished sweep that MLflow has."""
    ours = sweep(tmp_path / "a" / "demo")
    complete(ours)
    sync(ours.path, uri, quiet)
    return ours


def second(found: dict[str, Any]) -> str:
    """The name of the experiment that came second."""
    first, other = sorted(found)
    assert first == "demo" and other.startswith("demo (")
    return other


def test_sibling_folders_have_an_experiment_each_and_sync_of_either_leaves_the_other(
    tmp_path: Path, uri: str, client: Any
) -> None:
    ours, theirs = two(tmp_path)
    said: list[str] = []
    assert sync(ours.path, uri, said.append) == 2
    alone = logged(client)
    assert sync(theirs.path, uri, said.append) == 2
    both = logged(client)
    assert both["demo"] == alone["demo"]
    assert final(both["demo"]) == 0.5 and final(both[second(both)]) == 0.7
    assert "'demo'" in said[0] and f"'{second(both)}'" in said[1]
    for store in (ours, theirs, ours):
        sync(store.path, uri, quiet)
        now = logged(client)
        for name in both:
            assert now[name][A] == both[name][A] and now[name][B] == both[name][B]


def test_runs_that_are_deleted_and_made_anew_in_one_folder_stay_in_the_others_experiment(
    tmp_path: Path, uri: str, client: Any
) -> None:
    ours, theirs = two(tmp_path)
    for store in (ours, theirs):
        sync(store.path, uri, quiet)
    before = logged(client)
    theirs.forget([A])
    save(theirs, A, rows(0, 2, test_accuracy=0.9))
    sync(theirs.path, uri, quiet)
    now = logged(client)
    assert now["demo"] == before["demo"]
    assert now[second(now)][A]["info"] != before[second(now)][A]["info"]


def test_an_experiment_deleted_in_mlflow_is_restored_by_its_own_folder_alone(
    tmp_path: Path, uri: str, client: Any
) -> None:
    ours, theirs = two(tmp_path)
    sync(ours.path, uri, quiet)
    before = logged(client)
    client.delete_experiment(client.get_experiment_by_name("demo").experiment_id)
    sync(theirs.path, uri, quiet)
    (name,) = logged(client)
    assert name.startswith("demo (")
    sync(ours.path, uri, quiet)
    now = logged(client)
    assert now["demo"][A]["data"] == before["demo"][A]["data"]
    assert second(now) == name


def test_sweeps_that_run_at_the_same_time_and_are_continued_keep_their_runs(
    tmp_path: Path, uri: str, client: Any
) -> None:
    stores = [sweep(tmp_path / name / "demo") for name in "ab"]
    for first in (0, 2):
        for store, accuracy in zip(stores, (0.3, 0.6), strict=True):
            part = rows(first, first + 2, test_accuracy=accuracy)
            save(store, A, part, first)
            with closing(Projection(store, uri)) as projection:
                projection.sync_runs([A])
    found = logged(client)
    for name, accuracy in (("demo", 0.3), (second(found), 0.6)):
        run_id = found[name][A]["info"]["run_id"]
        points = client.get_metric_history(run_id, "test/accuracy")
        assert sorted((p.step, p.value) for p in points) == [
            (step, accuracy) for step in range(4)
        ]


def test_a_folder_that_is_moved_keeps_its_experiment_and_its_successor_gets_another(
    tmp_path: Path, uri: str, client: Any
) -> None:
    ours = first_synced(tmp_path, uri)
    before = logged(client)
    moved = tmp_path / "archive" / "demo of may"
    moved.parent.mkdir()
    shutil.move(ours.path, moved)

    successor = sweep(ours.path)
    complete(successor, test_accuracy=0.7)
    sync(successor.path, uri, quiet)
    assert logged(client)["demo"] == before["demo"]
    for path in (moved, successor.path, moved):
        sync(path, uri, quiet)
    now = logged(client)
    assert now["demo"][A] == before["demo"][A] and final(now[second(now)]) == 0.7


def test_a_folder_that_was_copied_with_its_id_logs_to_the_same_experiment(
    tmp_path: Path, uri: str, client: Any
) -> None:
    ours = first_synced(tmp_path, uri)
    before = logged(client)
    copy = Store(tmp_path / "b" / "demo")
    shutil.copytree(ours.path, copy.path)
    sync(copy.path, uri, quiet)
    now = logged(client)
    assert list(now) == ["demo"] and now["demo"][A] == before["demo"][A]


def test_folders_that_are_copied_with_their_database_keep_the_names_of_experiments(
    tmp_path: Path, tables: Path
) -> None:
    root, copied = tmp_path / "results", tmp_path / "copied"
    ours = sweep(root / "demo")
    complete(ours)
    shutil.copy(tables, root / "mlflow.db")
    sync(ours.path, None, quiet)
    shutil.copytree(root, copied)
    before = {p: p.read_bytes() for p in (root / "mlartifacts").rglob("*.json")}
    sync(copied / "demo", None, quiet)
    client = connect(default_uri(copied))
    assert list(logged(client)) == ["demo"]
    there = client.get_experiment_by_name("demo").artifact_location
    assert there == (copied / "mlartifacts").as_uri()
    disconnect(client)
    assert before == {p: p.read_bytes() for p in (root / "mlartifacts").rglob("*.json")}


@pytest.mark.parametrize(
    "content", [b"", b"x" * 32, b"a" * 33, b"' OR 1=1 --\xff"], ids=repr
)
def test_an_id_that_is_none_is_drawn_again_and_then_kept(
    tmp_path: Path, content: bytes
) -> None:
    store = sweep(tmp_path / "demo")
    (store.path / ".folder").write_bytes(content)
    drawn = folder_id(store)
    assert re.fullmatch("[0-9a-f]{32}", drawn) and folder_id(store) == drawn


def test_an_id_behind_a_link_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    store = sweep(tmp_path / "demo")
    (tmp_path / "elsewhere").write_text("a" * 32)
    (store.path / ".folder").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link out of"):
        folder_id(store)


def test_real_sweeps_of_one_name_and_one_configuration_are_tracked_apart(
    tmp_path: Path, uri: str, client: Any, tiny: Run
) -> None:
    runs = [tiny, tiny.replace(seed=5)]
    manifest = Sweep("demo", runs=runs).manifest()
    stores = [Store(tmp_path / name / "demo") for name in "ab"]
    for store in (*stores, *stores):
        store.create()
        store.write_manifest(manifest)
        tracker = Tracker(store, uri, pytest.fail)
        # The second time, each sweep is run again from its beginning.
        store.forget(None)
        for run in runs:
            work = Worker(run.cells, run.data.load(), run.model)
            run_in_process(run, store, work)
            tracker.submit([run.id])
        assert tracker.finish(60)
    found = logged(client)
    assert second(found)
    for shown in found.values():
        assert set(shown) == {"parent", *(run.id for run in runs)}
        assert shown["parent"]["info"]["status"] == "FINISHED"
