"""Bring MLflow to what folders hold: while a sweep runs, and later by `raysafl sync`."""

import shlex
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from itertools import islice
from pathlib import Path

from raysafl.core.text import count
from raysafl.storage.paths import StorageError, SweepBusyError
from raysafl.storage.redaction import refuse_password
from raysafl.storage.store import Store, sweeps_in
from raysafl.tracking.choice import Tracking
from raysafl.tracking.client import default_uri, explained, reason
from raysafl.tracking.projection import RUNS_AT_ONCE, Projection


class Tracker:
    """Keeps MLflow up to date with a sweep's folder, which must hold its manifest.

    If MLflow fails, `say` is told so once, and nothing more is logged. The results in
    Parquet are complete without it.

    Args:
        store: the folder of the sweep.
        uri: MLflow's URI.
        say: is told about a failure.
        track: how much is logged.
    """

    def __init__(
        self,
        store: Store,
        uri: str,
        say: Callable[[str], None],
        track: Tracking = Tracking.AUTO,
    ) -> None:
        self._store = store
        self._uri = uri
        self._say = say
        self._track = track
        # A dict keeps the order in which runs were submitted, and holds each run once.
        self._pending: dict[str, None] = {}
        self._changed = threading.Condition()
        self._closing = self._synced = False
        # Whether MLflow has been opened, or has failed.
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def submit(self, run_ids: Collection[str]) -> None:
        """Let the thread log the new rows of some runs, or their ends.

        This returns immediately.
        """
        with self._changed:
            self._pending |= dict.fromkeys(run_ids)
            self._changed.notify()

    def wait_until_opened(self, patience: float) -> None:
        """Wait until the sweep's folder says where MLflow shows it, or MLflow has failed.

        Args:
            patience: the largest number of seconds.
        """
        self._opened.wait(patience)

    @property
    def waiting(self) -> int:
        """How many runs have something new to be logged."""
        return len(self._pending)

    def finish(self) -> bool:
        """Log what is left, then the sweep as a whole.

        A server that is silent does not hold this up for long, as requests have a limit.

        Returns:
            Whether all was logged.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        return self._synced

    def _next(self) -> list[str]:
        """Wait for runs that have something new; none are left when the tracker is closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            run_ids = list(islice(self._pending, RUNS_AT_ONCE))
            for run_id in run_ids:
                del self._pending[run_id]
            return run_ids

    def _work(self) -> None:
        """Log runs as they are submitted, then the sweep as a whole. The thread runs this."""
        path = self._store.path
        given = [] if self._uri == default_uri(path.parent) else [self._uri]
        call = ["raysafl", "sync", str(path), *(f"--tracking-uri={u}" for u in given)]
        later = f"`{shlex.join(call)}` logs them later"
        try:
            with closing(Projection(self._store, self._uri, self._track)) as projection:
                self._opened.set()
                while run_ids := self._next():
                    projection.sync_runs(run_ids)
                projection.sync_sweep()
            self._synced = True
        except StorageError as error:
            self._say(
                f"nothing more is logged to MLflow, as results cannot be used: {error}; {later}"
            )
        except Exception as error:
            # Whatever MLflow raises, the sweep must go on.
            self._say(
                f"MLflow at {self._uri} failed: {reason(error)}. The results in Parquet are "
                f"complete; {later}"
            )
        finally:
            self._opened.set()


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
