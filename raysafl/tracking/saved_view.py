"""A saved view of MLflow's pages: all runs of a sweep, with their numbers and curves.

MLflow stores a saved view as a tag of the experiment. Without it, the page shows the
parent run alone.
"""

import json
from collections.abc import Sequence
from typing import Any

from raysafl.tracking.metrics import STATISTICS

NAME = "Sweep"
# An address that ends in `?viewStateShareKey=raysafl` opens the view.
KEY = "raysafl"
TAG = f"mlflow.sharedViewState.{KEY}"
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


def saved_view(parent: str, labels: Sequence[str], statistic: str, created: int) -> str:
    """Return the content of the tag that stores the view.

    Args:
        parent: MLflow's id of the parent run, below which the other runs are listed.
        labels: the axes of the sweep.
        statistic: the statistic of the sweep's table, by which the runs are ordered.
        created: the time of creation, in milliseconds since 1970.
    """
    section = "raysafl-charts"
    charts: list[dict[str, Any]] = [
        _chart("LINE", name, section, selectedMetricKeys=[name], xAxisKey="step")
        for name in LINES
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
