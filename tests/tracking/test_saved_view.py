"""The saved view of MLflow's page shows what the runs of a sweep are judged by."""

import json
from typing import Any

from raysafl.core.record import further_column
from raysafl.storage.manifest import Manifest, Table
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
    assert charts(manifest)[:2] == ["test/accuracy", "final"]
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
    assert charts(manifest)[:3] == ["test/mae", "final_mae", "val/mae"]
    assert "test/accuracy" not in charts(manifest)
    assert state(manifest)["orderByAsc"] is True
