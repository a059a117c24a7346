"""The saved view of MLflow's page shows what the runs of a sweep are judged by."""

import json
from pathlib import Path
from typing import Any

from raysafl.core.record import further_column
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.mlflow_view import MlflowView
from raysafl.storage.store import Store
from raysafl.tracking.descriptions import description
from raysafl.tracking.entities import fresh_params
from raysafl.tracking.metrics import shown_statistics
from raysafl.tracking.saved_view import saved_view


def state(manifest: Manifest) -> dict[str, Any]:
    content = json.loads(saved_view("parent", manifest, 0))
    found: dict[str, Any] = json.loads(content["state"])
    return found


def charts(manifest: Manifest) -> list[str]:
    return [chart["metricKey"] for chart in state(manifest)["compareRunCharts"]]


def test_runs_of_a_classification_are_ordered_by_the_highest_accuracy() -> None:
    manifest = Manifest(
        name="a", axes=["p"], entries=[], table=Table(rows=["p"], statistic="final")
    )
    assert charts(manifest)[:2] == ["final", "test/accuracy"]
    assert state(manifest)["orderByKey"] == "metrics.`final`"
    assert state(manifest)["orderByAsc"] is False


def test_runs_of_a_regression_are_ordered_by_the_lowest_error() -> None:
    columns = {
        "test_mae": further_column("error", higher_is_better=False),
        "val_mae": further_column("error on validation data", higher_is_better=False),
    }
    manifest = Manifest(
        name="a",
        axes=["p"],
        entries=[],
        table=Table(rows=["p"], statistic="final_mae"),
        columns=columns,
        quality="test_mae",
    )
    assert charts(manifest)[:3] == ["final_mae", "test/mae", "val/mae"]
    assert "test/accuracy" not in charts(manifest)
    assert state(manifest)["orderByAsc"] is True


def test_runs_of_a_search_are_ordered_by_the_validation_samples_that_choose_the_best() -> (
    None
):
    manifest = Manifest(
        name="a",
        axes=["lr"],
        entries=[],
        table=Table(rows=["lr"]),
        columns={"val_loss": further_column("loss", higher_is_better=False)},
        goal=("val_loss", "min"),
    )
    assert state(manifest)["orderByKey"] == "metrics.`final_val_loss`"
    assert state(manifest)["orderByAsc"] is True
    shown = ["metrics.`final_val_loss`", "metrics.`final`"]
    assert state(manifest)["selectedColumns"][:2] == shown
    # MLflow gets the numbers of both.
    assert shown_statistics(manifest)[:2] == ["final_val_loss", "final"]


def test_the_first_chart_and_the_columns_set_the_labels_beside_the_statistic() -> None:
    axes = ["lr", "p"]
    table = Table(rows=axes, statistic="last10", also=["final", "best"])
    manifest = Manifest(name="a", axes=axes, entries=[], table=table)
    first, second, *_ = state(manifest)["compareRunCharts"]
    assert (first["type"], second["type"]) == ("PARALLEL", "LINE")
    assert second["lineSmoothness"] == 0  # tests/tracking/test_browser.py shows why
    assert first["selectedParams"] == ["label.lr", "label.p"]
    assert first["selectedMetrics"] == ["last10"] and first["showAllRuns"]
    assert state(manifest)["selectedColumns"] == [
        *("metrics.`last10`", "params.`label.lr`", "params.`label.p`"),
        *("tags.`result`", "tags.`status`"),
    ]


def test_a_label_has_the_name_that_its_parameter_has_in_mlflow() -> None:
    axis = "acc@5 (%)"
    manifest = Manifest(name="a", axes=[axis], entries=[], table=Table(rows=[axis]))
    (parameter,) = fresh_params({f"label.{axis}": 1}, {})
    found = state(manifest)
    assert found["compareRunCharts"][0]["selectedParams"] == [parameter.key]
    assert f"params.`{parameter.key}`" in found["selectedColumns"]


def test_the_description_says_how_many_runs_the_page_does_not_load_at_first(
    tmp_path: Path,
) -> None:
    def first_line(runs: int) -> str:
        store = Store(tmp_path / str(runs))
        store.create()
        entries = [Entry(run_id=f"{i:012x}", labels={"p": i}) for i in range(runs)]
        table = Table(rows=["p"])
        store.write_manifest(
            Manifest(name="many", axes=["p"], entries=entries, table=table)
        )
        text = description(store, 10_000, "note", MlflowView("uri", "1", "parent"))
        return text.splitlines()[0]

    assert first_line(100) == "### many"
    assert first_line(101) == (
        "### many (101 runs: this page begins with the best 100, and *Load more* below them "
        "adds others)"
    )
