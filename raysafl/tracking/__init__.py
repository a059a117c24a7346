"""MLflow as a copy of the results. Parquet is the truth, and nothing is lost without MLflow.

Logging while a sweep runs, at the end of a run, and `raysafl sync` all use
`Projection`.
"""

from raysafl.tracking.choice import Tracking
from raysafl.tracking.client import default_uri, ping
from raysafl.tracking.projection import Projection
from raysafl.tracking.sync import sync
from raysafl.tracking.tracker import Tracker

__all__ = ["Projection", "Tracker", "Tracking", "default_uri", "ping", "sync"]
