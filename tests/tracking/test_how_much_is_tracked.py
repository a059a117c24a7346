"""How much MLflow gets of a sweep: nothing, summaries, or curves of at most 100 points."""

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from helpers.made import end, save
from helpers.tracked import ORIGIN, A, B, View, complete, rows, uri_of, with_config
from mlflow import MlflowClient

from raysafl.storage.store import Store
from raysafl.tracking.choice import Tracking
from raysafl.tracking.projection import Projection
from raysafl.tracking.tracker import sync


def quiet(message: str) -> None:
    """Say nothing."""


def log(store: Store, run_id: str, track: Tracking = Tracking.CURVES) -> None:
    """One process that logs a run while it runs."""
    with closing(Projection(store, uri_of(store), track)) as projection:
        projection.sync_runs([run_id])


def steps(view: View, run_id: str = A, metric: str = "test/accuracy") -> list[int]:
    return [step for step, _ in view.points(run_id, metric)]


def test_curves_of_250_rounds_have_every_third_and_the_last(
    store: Store, view: Any
) -> None:
    with_config(store, rounds=250)
    end(store, A, rows(0, 250), **ORIGIN)
    sync(store.path, None, quiet)
    now = view()
    shown = [*range(2, 249, 3), 249]
    assert len(shown) == 84 and steps(now) == shown
    # The rounds that are left out count in running sums.
    assert now.points(A, "work/bytes_down") == [(t, 400.0 * (t + 1)) for t in shown]
    accuracy = [(t, pytest.approx(t / 10 + 0.1)) for t in shown]
    assert now.points(A, "test/accuracy") == accuracy
    (parent,) = now.parents
    assert "at most 100 points" in parent.data.tags["mlflow.note.content"]


@pytest.mark.parametrize("status", ["stopped", "failed"])
def test_a_run_that_ends_early_shows_its_last_round_unless_it_may_go_on(
    status: str, store: Store, view: Any
) -> None:
    with_config(store, rounds=250)
    end(store, A, rows(0, 5), status)
    sync(store.path, None, quiet)
    assert steps(view()) == ([2, 4] if status == "stopped" else [2])


def test_a_run_that_grows_while_it_is_logged_shows_what_is_logged_at_once(
    store: Store, view: Any
) -> None:
    with_config(store, rounds=310)
    with closing(Projection(store, uri_of(store))) as projection:
        for last in (1, 4, 5, 163, 170, 310):
            save(store, A, rows(0, last, enforce_prob=0.25))
            projection.sync_runs([A])
            # k = ceil(310 / 100) = 4
            assert steps(view()) == [t for t in range(last) if t % 4 == 3]
            assert (now := view().children[A]).info.status == "RUNNING"
        end(store, A, rows(0, 310, enforce_prob=0.25), **ORIGIN)
        projection.sync_runs([A])
    grown = view()
    assert grown.children[A].info.run_id == now.info.run_id
    assert grown.children[A].data.params == now.data.params
    assert grown.children[A].info.status == "FINISHED"
    assert steps(grown) == [*range(3, 308, 4), 309] and len(steps(grown)) == 78
    grown.client.delete_run(grown.children[A].info.run_id)
    sync(store.path, None, quiet)
    whole = view()
    metrics = grown.children[A].data.metrics
    assert whole.children[A].data.metrics == metrics
    for name in metrics:
        assert whole.points(A, name) == grown.points(A, name)


def test_of_seeds_that_come_one_after_the_other_curves_go_as_far_as_all_have_come(
    store: Store, view: Any
) -> None:
    first, second = rows(0, 5)[:5], rows(0, 5)[5:]
    accuracy = [(t, pytest.approx(t / 10 + 0.1)) for t in range(5)]
    with closing(Projection(store, uri_of(store))) as projection:
        end(store, A, first, replicates=[0])
        for through in (0, 1, 3):
            save(store, A, second[:through])
            projection.sync_runs([A])
            now = view()
            assert now.points(A, "test/accuracy") == accuracy[:through]
            assert now.children[A].data.params["rounds"] == "5"
        end(store, A, second, replicates=[1])
        projection.sync_runs([A])
    assert view().points(A, "test/accuracy") == accuracy


def test_a_run_that_is_damaged_loses_its_number_in_mlflow(
    store: Store, view: Any
) -> None:
    complete(store)
    sync(store.path, None, quiet)
    before = view().children
    (lost,) = {end.rounds for end in store.read(A).runs[A].cells}
    store.part("rounds", lost).unlink()
    sync(store.path, None, quiet)
    now = view().children
    assert now[A].info.status == "KILLED" and now[A].data.tags["status"] == "waiting"
    assert f"damaged: rounds/{lost}.parquet is missing" in now[A].data.tags["reason"]
    assert "result" not in now[A].data.tags and now[A].data.metrics == {}
    assert now[B].to_dictionary() == before[B].to_dictionary()


def test_a_summary_has_metrics_parameters_and_tags_and_gets_curves_and_files_later(
    store: Store, view: Any
) -> None:
    complete(store)
    assert sync(store.path, None, quiet, track=Tracking.SUMMARY) == 2
    now = view()
    run = now.children[A]
    assert run.info.status == "FINISHED" and run.data.params["label.q"] == "0.5"
    # Of two replicates with accuracies 0.4 and 0.6 in the last round.
    assert run.data.metrics["final"] == pytest.approx(0.5)
    assert run.data.tags["result"] == "final 50.00 ± 14.14 %"
    assert "test/accuracy" not in run.data.metrics
    assert now.all_points() == sum(len(r.data.metrics) for r in now.children.values())
    assert now.files(run.info.run_id) == []
    (parent,) = now.parents
    assert "no curves" in parent.data.tags["mlflow.note.content"]
    # Curves are added to summaries, and then kept.
    sync(store.path, None, quiet, track=Tracking.CURVES)
    second = view()
    assert steps(second) == [0, 1, 2, 3, 4]
    files = second.files(second.children[A].info.run_id)
    assert files == ["config.json", "statistics.json"]
    sync(store.path, None, quiet, track=Tracking.SUMMARY)
    third = view()
    assert third.all_points() == second.all_points()
    assert third.children[A].to_dictionary() == second.children[A].to_dictionary()


def test_a_database_knows_its_sizes_so_that_a_sort_by_a_metric_is_no_nested_scan(
    store: Store,
) -> None:
    complete(store)
    sync(store.path, None, quiet, track=Tracking.SUMMARY)
    file = store.path.parent / "mlflow.db"
    with closing(sqlite3.connect(file)) as opened:
        query = "SELECT stat FROM sqlite_stat1 WHERE tbl = 'latest_metrics'"
        sizes = [int(stat.split()[0]) for (stat,) in opened.execute(query)]
        (rows,) = opened.execute("SELECT COUNT(*) FROM latest_metrics").fetchone()
    assert sizes and set(sizes) == {rows}


def test_a_failed_run_that_is_tried_again_in_the_same_sweep_shows_its_last_end(
    store: Store, view: Any
) -> None:
    with closing(Projection(store, uri_of(store), Tracking.SUMMARY)) as projection:
        end(store, A, rows(0, 2), "failed")
        projection.sync_runs([A])
        failed = view().children[A]
        assert failed.info.status == "FAILED"
        assert "final" not in failed.data.metrics
        store.forget(set(store.ledger()))
        save(store, A, rows(0, 4))
        projection.sync_runs([A])
        running = view().children[A]
        assert running.info.status == "RUNNING"
        assert running.data.tags["status"] == "running"
        end(store, A, rows(0, 5), **ORIGIN)
        projection.sync_runs([A])
    now = view().children[A]
    assert now.info.run_id == running.info.run_id and now.info.status == "FINISHED"
    assert now.data.metrics["final"] == pytest.approx(0.5)


@pytest.mark.parametrize("lost", ["log_batch", "log_artifacts", "set_terminated"])
def test_a_driver_that_dies_while_it_logs_a_run_leaves_no_gap(
    lost: str, store: Store, view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(store)

    def dies(*_: Any, **__: Any) -> None:
        raise ConnectionError

    with (
        closing(Projection(store, uri_of(store))) as projection,
        monkeypatch.context() as patch,
        pytest.raises(ConnectionError),
    ):
        patch.setattr(MlflowClient, lost, dies)
        projection.sync_runs([A])
    assert view().children[A].info.status == "RUNNING"
    log(store, A)
    now = view()
    (run,) = now.children.values()
    assert run.info.status == "FINISHED"
    assert run.data.metrics["final"] == pytest.approx(0.5)
    assert run.data.params["algorithm"] == "SAFARI"
    assert steps(now) == [0, 1, 2, 3, 4]
    assert now.files(run.info.run_id) == ["config.json", "statistics.json"]


def test_a_run_that_has_ended_takes_three_requests(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(store)
    asked = []
    for name in ("create_run", "get_run", "log_batch", "set_terminated", "update_run"):
        method = getattr(MlflowClient, name)

        def ask(*given: Any, to: Any = method, name: str = name, **named: Any) -> Any:
            asked.append(name)
            return to(*given, **named)

        monkeypatch.setattr(MlflowClient, name, ask)
    uri = uri_of(store)
    with closing(Projection(store, uri, Tracking.SUMMARY)) as projection:
        asked.clear()
        projection.sync_runs([A, B])
        assert asked == ["create_run", "log_batch", "set_terminated"] * 2
        projection.sync_runs([A, B])
        assert len(asked) == 6
