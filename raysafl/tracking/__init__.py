"""MLflow as a projection of the results: Parquet is the truth, and nothing is lost without this.

Logging while a sweep runs, at a run's end and `raysafl sync` are one path: `Projection`.
"""

from raysafl.tracking.client import default_uri, ping
from raysafl.tracking.projection import Projection
from raysafl.tracking.sync import sync
from raysafl.tracking.tracker import Tracker

__all__ = ["Projection", "Tracker", "default_uri", "ping", "sync"]
