"""`raysafl sync`: bring MLflow to what the folders hold."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from raysafl.core.text import count
from raysafl.storage.paths import SweepBusyError
from raysafl.storage.redaction import refuse_password
from raysafl.storage.store import sweeps_in
from raysafl.tracking.choice import Tracking
from raysafl.tracking.client import default_uri, explained
from raysafl.tracking.projection import Projection


def sync(
    path: Path,
    uri: str | None,
    say: Callable[[str], None],
    track: Tracking = Tracking.AUTO,
) -> int:
    """Bring MLflow to what is in a sweep's folder, or in a folder of sweeps.

    Args:
        path: the folder.
        uri: MLflow's URI; None: the database beside the sweeps, or
            `MLFLOW_TRACKING_URI`.
        say: is told what was done, one line per sweep.
        track: how much is logged.

    Returns:
        The number of runs.

    Raises:
        ValueError: there is no sweep, the URI holds a password, MLflow does not answer,
            or `track` is `none`.
    """
    total = 0
    for store in sweeps_in(path):
        target = refuse_password(uri or default_uri(store.path.resolve().parent))
        try:
            with (
                store.lock(),
                explained(target),
                closing(Projection(store, target, track)) as projection,
            ):
                runs = projection.sync_sweep()
        except SweepBusyError:
            say(f"{store.path} is left out: a sweep is running there, and logs itself")
            continue
        total += runs
        say(f"{store.path}: {count(runs, 'run')} in MLflow at {target}")
    return total
