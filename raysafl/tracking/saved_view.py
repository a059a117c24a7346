"""A saved view of MLflow's pages: the runs of a sweep, with their numbers and curves.

MLflow stores a saved view as a tag of the experiment. Without it, the page shows the
parent run alone.
"""

import json
from typing import Any

from raysafl.storage.manifest import Manifest
from raysafl.storage.mlflow_view import VIEW_KEY
from raysafl.tracking.entities import allowed
from raysafl.tracking.metrics import metric_name

NAME = "Sweep"
TAG = f"mlflow.sharedViewState.{VIEW_KEY}"
# Curves besides the one by which runs are judged; MLflow hides those without points.
LINES = ("test_loss", "enforce_prob")
# Largest number of axes beside the statistic in the chart of all runs.
AXES = 8


def saved_view(parent: str, manifest: Manifest, created: int) -> str:
    """Return the content of the tag that stores the view.

    Args:
        parent: MLflow's id of the parent run, below which the other runs are listed.
        manifest: what the sweep is. The runs are ordered by what ranks them, the best one
            first.
        created: the time of creation, in milliseconds since 1970.
    """
    section = "raysafl-charts"
    ranked_by, lower_is_better = manifest.ranked_by
    shown = list(dict.fromkeys([ranked_by, manifest.table.statistic]))
    quality = manifest.quality
    on_validation = quality.replace("test_", "val_", 1)
    validated = [on_validation] if on_validation in manifest.columns else []
    columns = dict.fromkeys([quality, *validated, *LINES])
    # Where a chart does not say it, MLflow smooths a line, and its end is another number.
    as_is = {"xAxisKey": "step", "lineSmoothness": 0}
    labels = [allowed(f"label.{axis}") for axis in manifest.axes]
    # A line for each run goes through its labels and ends at its number in the table.
    charts: list[dict[str, Any]] = [
        _chart("PARALLEL", ranked_by, section, showAllRuns=True)
        | {"selectedParams": labels[:AXES], "selectedMetrics": shown},
        *(
            _chart("LINE", name, section, selectedMetricKeys=[name], **as_is)
            for name in map(metric_name, columns)
        ),
    ]
    state = {
        "orderByKey": f"metrics.`{ranked_by}`",
        "orderByAsc": lower_is_better,
        "selectedColumns": [
            # MLflow puts metrics before parameters: more of them would hide the labels.
            *(f"metrics.`{name}`" for name in shown),
            *(f"params.`{label}`" for label in labels),
            "tags.`result`",
            "tags.`status`",
        ],
        "runsExpanded": {parent: True},
        "runsHidden": [parent],
        "runsHiddenMode": "CUSTOM",
        "runsVisibilityMap": {parent: False},
        "compareRunCharts": charts,
        "compareRunSections": [
            {"uuid": section, "name": "Results and curves", "display": True}
            | {"isReordered": True, "deleted": False, "isGenerated": False}
            # Charts side by side would be too small to read.
            | {"columns": 1}
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
        "deleted": False,
        "isGenerated": False,
        **more,
    }
