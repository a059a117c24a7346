"""A saved view of MLflow's UI: all runs of a sweep, its numbers as columns, its curves as charts.

MLflow keeps saved views as tags of the experiment; by itself it would show the parent alone.
"""

import json
from collections.abc import Sequence
from typing import Any

from raysafl.tracking.metrics import STATISTICS

NAME = "Sweep"
KEY = "raysafl"  # `?viewStateShareKey=raysafl` opens it
TAG = f"mlflow.sharedViewState.{KEY}"
LINES = ("test_accuracy", "test_loss", "train_accuracy", "q", "server_rounds", "bytes_down")
RUNS = 100  # drawn in one chart


def saved_view(parent: str, labels: Sequence[str], statistic: str, created: int) -> str:
    """The tag's content.

    Args:
        parent: MLflow's id of the parent run, under which the others are unfolded.
        labels: the axes of the sweep.
        statistic: the one in the sweep's table, by which runs are ordered.
        created: milliseconds since 1970.
    """
    section = "raysafl-charts"
    charts: list[dict[str, Any]] = [
        _chart("LINE", name, section, selectedMetricKeys=[name], xAxisKey="step") for name in LINES
    ]
    charts.insert(1, _chart("BAR", statistic, section))
    state = {
        "orderByKey": f"metrics.`{statistic}`",
        "orderByAsc": False,
        "selectedColumns": [
            *(f"params.`label.{axis}`" for axis in labels),
            *(f"metrics.`{name}`" for name in dict.fromkeys([statistic, *STATISTICS])),
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
    view = {"name": NAME, "createdAt": created, "updatedAt": created, "state": json.dumps(state)}
    return json.dumps(view)


def _chart(kind: str, metric: str, section: str, **more: Any) -> dict[str, Any]:
    named = {"uuid": f"raysafl-{metric}", "type": kind, "metricSectionId": section}
    told = {"metricKey": metric, "displayName": metric, "runsCountToCompare": RUNS}
    return named | told | {"deleted": False, "isGenerated": False} | more
