"""The driver's writer to MLflow: a thread that the sweep neither waits for nor falls with."""

import threading
from collections.abc import Callable
from contextlib import closing

from raysafl.core.text import redacted
from raysafl.storage.store import Store
from raysafl.tracking.client import reason
from raysafl.tracking.projection import Configs, Curve, Projection


class Tracker:
    """Keeps MLflow up to date with a sweep's folder, which must hold its manifest.

    If MLflow fails, `say` is told so once, from the thread, and no more is tried: the results
    are whole without it.
    """

    def __init__(
        self,
        store: Store,
        uri: str,
        say: Callable[[str], None],
        configs: Configs | None = None,
        curve: Curve | None = None,
    ) -> None:
        self._store, self._uri, self._say = store, uri, say
        self._configs, self._curve = configs, curve
        self._pending: dict[str, None] = {}  # in order, each run once
        self._changed = threading.Condition()
        self._closing = self._warned = self._synced = False
        self._projection: Projection | None = None
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def submit(self, run_id: str) -> None:
        """Have the new rows of a run, or its end, logged soon. Returns at once."""
        with self._changed:
            self._pending[run_id] = None
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """How many runs have something new to be logged."""
        return len(self._pending)

    def finish(self, patience: float = 60.0) -> bool:
        """Log what is left and the whole sweep; False if MLflow fails, or stands still.

        It stands still if no run is dealt with for `patience` seconds.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        before = -1
        while self._thread.is_alive() and before != self._looked():
            before = self._looked()
            self._thread.join(patience)
        if self._thread.is_alive():
            self._warn(f"does nothing for {patience:g} s")
        return self._synced

    def _looked(self) -> int:
        return self._projection.looked if self._projection else 0

    def _next(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            if not self._pending:
                return None
            run_id = next(iter(self._pending))
            del self._pending[run_id]
            return run_id

    def _work(self) -> None:
        try:
            projection = Projection(self._store, self._uri, self._configs, self._curve)
            self._projection = projection
            with closing(projection):
                while run_id := self._next():
                    projection.sync_run(run_id)
                projection.sync_sweep()
            self._synced = True
        except Exception as error:  # whatever it is, the sweep goes on
            self._warn(f"failed: {reason(error)}")

    def _warn(self, what: str) -> None:
        with self._changed:
            told, self._warned = self._warned, True
        if not told:
            self._say(
                f"MLflow at {redacted(self._uri)} {what}. The results in Parquet are whole; "
                f"`raysafl sync {self._store.path}` logs them later"
            )
