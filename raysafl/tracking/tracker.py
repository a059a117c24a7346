"""The thread of the driver that writes to MLflow, without delaying or failing the sweep."""

import threading
from collections.abc import Callable, Collection
from contextlib import closing
from itertools import islice

from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store
from raysafl.tracking.choice import Tracking
from raysafl.tracking.client import reason
from raysafl.tracking.projection import RUNS_AT_ONCE, Curve, Projection


class Tracker:
    """Keeps MLflow up to date with a sweep's folder, which must hold its manifest.

    If MLflow fails, `say` is told so once, from the thread, and nothing more is logged.
    The results in Parquet are complete without it.

    Args:
        store: the folder of the sweep.
        uri: MLflow's URI.
        say: is told about a failure.
        track: how much is logged.
        curve: draws the figure of a run; None: no figures.
    """

    def __init__(
        self,
        store: Store,
        uri: str,
        say: Callable[[str], None],
        track: Tracking = Tracking.AUTO,
        curve: Curve | None = None,
    ) -> None:
        self._store = store
        self._uri = uri
        self._say = say
        self._track = track
        self._curve = curve
        # A dict keeps the order in which runs were submitted, and holds each run once.
        self._pending: dict[str, None] = {}
        self._changed = threading.Condition()
        self._closing = self._warned = self._synced = False
        self._projection: Projection | None = None
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

    def finish(self, patience: float = 60.0) -> bool:
        """Log what is left, then the sweep as a whole.

        Args:
            patience: seconds without progress on any run after which MLflow is given
                up.

        Returns:
            Whether all was logged.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        before = -1
        # As long as runs are dealt with, the thread gets further time.
        while self._thread.is_alive() and before != self._progress():
            before = self._progress()
            self._thread.join(patience)
        if self._thread.is_alive():
            self._warn(f"does nothing for {patience:g} s")
        return self._synced

    def _progress(self) -> int:
        """Return a number that rises while the thread makes progress."""
        return self._projection.num_looked_at if self._projection else 0

    def _next(self) -> list[str]:
        """Wait for runs that have something new; none are left when the tracker is closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            # Runs are logged in the order in which they were submitted.
            run_ids = list(islice(self._pending, RUNS_AT_ONCE))
            for run_id in run_ids:
                del self._pending[run_id]
            return run_ids

    def _work(self) -> None:
        """Log runs as they are submitted, then the sweep as a whole. The thread runs this."""
        try:
            projection = Projection(self._store, self._uri, self._track, self._curve)
            self._projection = projection
            self._opened.set()
            with closing(projection):
                while run_ids := self._next():
                    projection.sync_runs(run_ids)
                projection.sync_sweep()
            self._synced = True
        except StorageError as error:
            self._say(
                f"nothing more is logged to MLflow, as results cannot be used: {error}; "
                f"`raysafl sync {self._store.path}` logs them later"
            )
        except Exception as error:
            # Whatever MLflow raises, the sweep must go on.
            self._warn(f"failed: {reason(error)}")
        finally:
            self._opened.set()

    def _warn(self, what: str) -> None:
        """Say once that MLflow fails."""
        with self._changed:
            first = not self._warned
            self._warned = True
        if first:
            self._say(
                f"MLflow at {self._uri} {what}. The results in Parquet are complete; "
                f"`raysafl sync {self._store.path}` logs them later"
            )
