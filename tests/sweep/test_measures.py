"""What the runs of a sweep measure decides its table, its search and its checks."""

from typing import Any, ClassVar

import pytest
from helpers.objectives import DETAILED, HUBER, PLAIN, REGRESSION
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from raysafl import Run, Sweep, Table, Validation
from raysafl.objectives import Classification, Regression
from raysafl.report.wording import search_note
from raysafl.storage.manifest import Manifest
from raysafl.sweep.grid import known_runs
from raysafl.sweep.measures import score_text


def manifest(*runs: Run, **fields: Any) -> Any:
    labelled = {(i,): run for i, run in enumerate(runs)}
    return Sweep("s", labelled, axes=("n",), **fields).manifest()


def test_plain_runs_have_no_further_columns_and_the_table_that_they_had() -> None:
    own = manifest(PLAIN)
    assert (own.columns, own.quality) == ({}, "test_accuracy")
    table = own.table
    assert (table.statistic, table.scale, table.unit) == ("final", 100.0, "%")
    assert table.also == ["final", "last10", "best", "after_server"]


def test_a_table_of_regressions_shows_their_error_as_it_is() -> None:
    own = manifest(REGRESSION, HUBER)
    assert own.quality == "test_mae"
    assert list(own.columns) == ["test_mae", "test_rmse", "test_r2"]
    assert not own.columns["test_rmse"].higher_is_better
    table = own.table
    assert (table.statistic, table.scale, table.unit) == ("final_mae", 1.0, "")
    assert table.also == [
        "final_mae",
        "last5_mae",
        "best_mae",
        "final_loss",
        "final_rmse",
        "final_r2",
    ]


def test_runs_with_different_objectives_are_compared_by_their_loss() -> None:
    own = manifest(PLAIN, REGRESSION)
    assert own.quality == "test_loss" and "test_mae" in own.columns
    assert own.table.statistic == "final_loss" and own.table.unit == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": Table(rows=["n"], statistic="final_mea")}, "mean 'final_mae'"),
        ({"table": Table(rows=["n"], also=["last10"])}, "no statistic 'last10'"),
    ],
)
def test_statistics_that_no_run_has_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        manifest(REGRESSION, **given)


VALIDATED = PLAIN.replace({"data.validation": Validation(server=0.2)})


GRID = {"space": {"local.lr": tune.grid_search([0.1, 0.2])}}


def searched(base: Run, **fields: Any) -> Sweep:
    space = {"local.lr": tune.uniform(0.1, 0.2)}
    return Sweep("s", base=base, **{"space": space, **fields})


@pytest.mark.parametrize(
    ("base", "given", "goal"),
    [
        (PLAIN, {}, ("test_accuracy", "max")),
        (PLAIN, {"metric": "test_loss", "mode": "max"}, ("test_loss", "max")),
        (REGRESSION, {}, ("test_mae", "min")),
        (REGRESSION, {"metric": "test_r2"}, ("test_r2", "max")),
        # On the validation samples, if every run has some.
        (VALIDATED, {}, ("val_accuracy", "max")),
        (VALIDATED, {"metric": "val_loss"}, ("val_loss", "min")),
        (VALIDATED, {"metric": "test_accuracy"}, ("test_accuracy", "max")),
        (VALIDATED.replace(objective=Regression()), {}, ("val_mae", "min")),
        # A grid has a goal if it names a metric, or has a scheduler.
        (PLAIN, GRID, None),
        (PLAIN, GRID | {"metric": "test_loss"}, ("test_loss", "min")),
        (PLAIN, GRID | {"scheduler": ASHAScheduler()}, ("test_accuracy", "max")),
    ],
)
def test_a_search_goes_by_what_runs_are_judged_by_in_the_better_direction(
    base: Run, given: dict[str, Any], goal: tuple[str, str] | None
) -> None:
    assert searched(base, **given).manifest().goal == goal


def test_the_report_says_by_what_runs_were_chosen_or_stopped() -> None:
    def note(base: Run, **more: Any) -> str:
        manifest = searched(base, **more).manifest()
        assert Manifest.from_json(manifest.to_json()) == manifest
        return search_note(manifest)

    assert note(PLAIN) == ""
    by_test = note(PLAIN, scheduler=ASHAScheduler())
    assert "by `test_accuracy`, which is measured on the test set" in by_test
    by_validation = note(VALIDATED, scheduler=ASHAScheduler())
    assert "by `val_accuracy`, and not by anything" in by_validation
    both = manifest(PLAIN, VALIDATED, scheduler=ASHAScheduler())
    assert both.goal == ("test_accuracy", "max")
    assert manifest(PLAIN).searched_by == ""


def test_of_runs_that_a_function_makes_any_metric_may_be_given() -> None:
    def make(config: dict[str, Any]) -> Run:
        return REGRESSION.replace(config)

    space = {"local.lr": tune.uniform(0.1, 0.2)}
    sweep = Sweep("s", space=space, base=make, metric="test_mae", mode="min")
    assert sweep.manifest().goal == ("test_mae", "min")
    with pytest.raises(ValueError, match="no run reports the metric 'mae'"):
        Sweep("s", space=space, base=make, metric="mae")
    assert sweep.manifest().quality == "test_accuracy"
    drawn, runs, _ = known_runs(sweep)
    assert drawn.quality == "test_mae" and drawn.table.statistic == "final_mae"
    ((run_id, run),) = runs.items()
    (entry,) = drawn.entries
    assert (entry.run_id, entry.labels) == (run_id, {"local.lr": run.local.lr})


def test_a_score_has_its_name_and_fractions_are_in_per_cent() -> None:
    columns = manifest(DETAILED).columns
    assert score_text("test_accuracy", 0.8125, {}, 1) == "test accuracy 81.2%"
    assert score_text("test_f1", 0.5, columns) == "test f1 50.00%"
    assert score_text("test_mae", 1 / 3, {}) == "test mae 0.3333"


class ByF1(Classification):
    """Classification that is judged by its macro F1."""

    metric: ClassVar[str] = "f1"


def test_final_is_the_last_value_of_what_runs_are_judged_by_given_or_left_out() -> None:
    cases = {
        "final": [PLAIN],
        "final_mae": [REGRESSION],
        "final_f1": [PLAIN.replace(objective=ByF1(metrics=["f1"]))],
        "final_loss": [PLAIN, REGRESSION],
    }
    for name, runs in cases.items():
        for given in ({}, {"statistic": "final"}):
            table = manifest(*runs, table=Table(rows=["n"], **given)).table
            assert table.statistic == name
    # Beside it, names are those of columns: the accuracy where some run has one.
    beside = Table(rows=["n"], also=["final"])
    assert manifest(PLAIN, REGRESSION, table=beside).table.also == ["final"]
