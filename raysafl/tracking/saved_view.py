"""A saved view of MLflow's pages: all runs of a sweep, with their numbers and curves.

MLflow stores a saved view as a tag of the experiment. Without it, the page shows the
parent run alone.
"""

import json
from collections.abc import Sequence
from typing import Any

from raysafl.storage.manifest import Table
from raysafl.storage.mlflow_view import VIEW_KEY
from raysafl.tracking.metrics import metric_name, shown_statistics

NAME = "Sweep"
TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
LINES = (
    "test_accuracy",
    "test_loss",
    "train_accuracy",
    "q",
    "server_rounds",
    "bytes_down",
)
# Largest number of runs in one chart.
RUNS = 100


def saved_view(parent: str, labels: Sequence[str], table: Table, created: int) -> str:
    """Return the content of the tag that stores the view.

    Args:
        parent: MLflow's id of the parent run, below which the other runs are listed.
        labels: the axes of the sweep.
        table: the sweep's table; the runs are ordered by its statistic.
        created: the time of creation, in milliseconds since 1970.
    """
    section = "raysafl-charts"
    charts: list[dict[str, Any]] = [
        _chart("LINE", name, section, selectedMetricKeys=[name], xAxisKey="step")
        for name in map(metric_name, LINES)
    ]
    charts.insert(1, _chart("BAR", table.statistic, section))
    state = {
        "orderByKey": f"metrics.`{table.statistic}`",
        "orderByAsc": False,
        "selectedColumns": [
            *(f"params.`label.{axis}`" for axis in labels),
            "tags.`result`",
            *(f"metrics.`{name}`" for name in shown_statistics(table)),
            "tags.`status`",
            "attributes.`Source`",
        ],
        "runsExpanded": {parent: True},
        "runsHidden": [parent],
        "runsHiddenMode": "CUSTOM",
        "runsVisibilityMap": {parent: False},
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": section, "name": "Curves and results", "display": True}
            | {"isReordered": True, "deleted": False, "isGenerated": False}
        ],
        "hideEmptyCharts": True,
    }
    view = {
        "name": NAME,
        "createdAt": created,
        "updatedAt": created,
        "state": json.dumps(state),
    }
    return json.dumps(view)


def _chart(kind: str, metric: str, section: str, **more: Any) -> dict[str, Any]:
    """Describe one chart of the view in MLflow's words."""
    return {
        "uuid": f"raysafl-{metric}",
        "type": kind,
        "metricSectionId": section,
        "metricKey": metric,
        "displayName": metric,
        "runsCountToCompare": RUNS,
        "deleted": False,
        "isGenerated": False,
        **more,
    }
