"""A saved view of MLflow's pages: all runs of a sweep, with their numbers and curves.

MLflow stores a saved view as a tag of the experiment. Without it, the page shows the
parent run alone.
"""

import json
from typing import Any

from raysafl.storage.manifest import Manifest
from raysafl.storage.mlflow_view import VIEW_KEY
from raysafl.storage.statistics import known_statistics
from raysafl.tracking.metrics import metric_name, shown_statistics

NAME = "Sweep"
TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
# Curves besides the one by which runs are judged; MLflow hides those without points.
LINES = ("test_loss", "train_accuracy", "enforce_prob", "server_rounds", "bytes_down")
# Largest number of runs in one chart.
RUNS = 100


def saved_view(parent: str, manifest: Manifest, created: int) -> str:
    """Return the content of the tag that stores the view.

    Args:
        parent: MLflow's id of the parent run, below which the other runs are listed.
        manifest: what the sweep is. The runs are ordered by the statistic of its table,
            the best one first.
        created: the time of creation, in milliseconds since 1970.
    """
    section = "raysafl-charts"
    table = manifest.table
    quality = manifest.quality
    on_validation = quality.replace("test_", "val_", 1)
    validated = [on_validation] if on_validation in manifest.columns else []
    columns = dict.fromkeys([quality, *validated, *LINES])
    statistic = known_statistics(manifest.columns, quality, [table.statistic])
    judged = statistic.get(table.statistic)
    charts: list[dict[str, Any]] = [
        _chart("LINE", name, section, selectedMetricKeys=[name], xAxisKey="step")
        for name in map(metric_name, columns)
    ]
    charts.insert(1, _chart("BAR", table.statistic, section))
    state = {
        "orderByKey": f"metrics.`{table.statistic}`",
        "orderByAsc": judged is not None and not judged.higher_is_better,
        "selectedColumns": [
            *(f"params.`label.{axis}`" for axis in manifest.axes),
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
