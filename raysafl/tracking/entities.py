"""Turns names and values into MLflow's own objects, within its limits."""

import math
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from raysafl.tracking.metrics import SUMS, metric_name

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Metric, Param, RunTag

# The largest number of characters of a tag, of a parameter and of a name in MLflow.
TEXT = 8000
PARAM = 6000
NAME = 250


def points(curves: "pd.DataFrame", start: int) -> list["Metric"]:
    """Return the points of curves that are finite.

    A running sum has no points as long as it is 0, so that MLflow draws no chart of what
    never happens in a run.

    Args:
        curves: the curves of a run, see `raysafl.tracking.metrics.curves_of`.
        start: when the run started, in milliseconds since 1970.
    """
    from mlflow.entities import Metric

    rounds = curves.index.tolist()
    times = (start + curves["time"]).tolist()
    return [
        Metric(metric_name(column), value, when, round)
        for column in curves.columns.drop("time")
        for round, when, value in zip(
            rounds, times, curves[column].tolist(), strict=True
        )
        if math.isfinite(value) and (value or column not in SUMS)
    ]


def single_metrics(values: Mapping[str, float]) -> list["Metric"]:
    """Return finite numbers that belong to no round."""
    from mlflow.entities import Metric

    when = now()
    finite = {name: float(v) for name, v in values.items() if math.isfinite(v)}
    return [Metric(allowed(name), value, when, 0) for name, value in finite.items()]


def params(values: Mapping[str, Any]) -> list["Param"]:
    """Return parameters of a run."""
    from mlflow.entities import Param

    texts = {allowed(name): str(value)[:PARAM] for name, value in values.items()}
    return [Param(name, text) for name, text in texts.items()]


def run_tags(tags: Mapping[str, str]) -> list["RunTag"]:
    """Return tags of a run."""
    from mlflow.entities import RunTag

    return [RunTag(name, text) for name, text in allowed_tags(tags).items()]


def allowed_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags with names and lengths that MLflow allows."""
    return {allowed(name): text[:TEXT] for name, text in tags.items()}


def allowed(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:NAME]


def now() -> int:
    """Return the time in milliseconds since 1970."""
    return int(1000 * time.time())
