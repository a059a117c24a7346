"""A saved view of MLflow's page of a sweep: the best run first, with its number and labels.

MLflow stores a saved view as a tag of the experiment. Without it, the page shows the
parent run alone, and no labels.
"""

import json

from raysafl.storage.manifest import Manifest
from raysafl.storage.mlflow_view import VIEW_KEY
from raysafl.tracking.entities import allowed

TAG = f"mlflow.sharedViewState.{VIEW_KEY}"


def saved_view(manifest: Manifest, created: int) -> str:
    """Return the content of the tag that stores the view.

    Args:
        manifest: what the sweep is. The runs are ordered by what ranks them, and its
            labels are columns.
        created: the time of creation, in milliseconds since 1970.
    """
    ranked_by, lower_is_better = manifest.ranked_by
    metrics = dict.fromkeys([ranked_by, manifest.table.statistic])
    labels = [allowed(f"label.{axis}") for axis in manifest.axes]
    state = {
        "orderByKey": f"metrics.`{ranked_by}`",
        "orderByAsc": lower_is_better,
        "selectedColumns": [
            # MLflow puts metrics before parameters: more of them would hide the labels.
            *(f"metrics.`{name}`" for name in metrics),
            *(f"params.`{label}`" for label in labels),
            "tags.`result`",
            "tags.`status`",
        ],
        "hideEmptyCharts": True,
    }
    view = {"name": "Sweep", "createdAt": created, "updatedAt": created}
    return json.dumps(view | {"state": json.dumps(state)})
