"""The driver's eye on Tune: feeds the display and the tracker, records lost trials."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from raysafl.runtime import Hardware
from raysafl.runtime.ray_private import forget_metric_history
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Label
from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store
from raysafl.sweep.definition import Make, sample_key
from raysafl.sweep.progress import Display
from raysafl.tracking import Tracker

WAIT_SECONDS = 60.0  # without any trial, until it is said; trials may take half of it to start
log = logging.getLogger(__name__)


class Watch(tune.Callback):
    """Tune calls this in the driver's process. It must not raise: that would end the sweep."""

    def __init__(
        self,
        store: Store,
        make: Make,
        show: Display,
        tracker: Tracker | None,
        hardware: Hardware,
        labels: Mapping[str, Mapping[str, Label]],
        sampled: Callable[[str, dict[str, Label]], None],
    ) -> None:
        self.store, self.make, self.show, self.tracker = store, make, show, tracker
        self.labels, self.sampled, self.hardware = dict(labels), sampled, hardware
        self.ran: float | None = time.monotonic()  # when a trial last ran; None: it has been said
        self.seen: dict[str, tuple[str, int | None]] = {}  # trial and its writes, by run
        self.lost = ""  # why results cannot be written any more; `Halt` ends the sweep then

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        """Tune pickles its callbacks to restore them; we never restore (docs/architecture.md)."""
        return tune.Callback, ()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """A trial begins."""
        self._running(trials)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Say once that no trial runs, and what they wait for."""
        if any(trial.status == Trial.RUNNING for trial in trials):
            self.ran = time.monotonic()
        elif self.ran is not None and time.monotonic() - self.ran > WAIT_SECONDS:
            self.ran = None
            log.warning(
                "no trial has run for %.0f s: they wait until the cluster has %s (a node was lost, "
                "or is still to be added, or others use it). `ray status` shows what there is",
                WAIT_SECONDS,
                self.hardware.describe(),
            )
            self._running(trials)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        """A report: name the run if it came from a distribution, and log its new rows."""
        run_id = result["run_id"]
        with self._noting(result.get("lost", "")):
            self._name(run_id, trial)
            writes = trial.trial_id, result.get("writes")
            if self.tracker is not None and self.seen.get(run_id) != writes:
                self.seen[run_id] = writes
                self.tracker.submit(run_id)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """A trial ended by itself, or a scheduler stopped it."""
        result = trial.last_result or {}
        run_id = str(result.get("run_id", ""))
        with self._noting():
            entry = self.store.ledger_entry(run_id)
            if not entry and not self.lost:
                reason = f"stopped by the scheduler after round {result.get('round')}"
                entry = LedgerEntry.now(_config(self._run(trial)), Status.STOPPED, reason)
                self.store.write_ledger(run_id, entry)
            if entry:
                self._ended(run_id, entry, result.get("test_accuracy", float("nan")))
        forget_metric_history(trial)
        self._running(trials)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """A trial's process was lost, and trying again did not help."""
        run = self._run(trial)
        run_id = run.id if run else sample_key(trial.config)
        last = str(trial.get_pickled_error() or "its process was lost").strip().splitlines()[-1]
        entry = LedgerEntry.now(_config(run), Status.FAILED, last)
        with self._noting():
            self.store.write_ledger(run_id, entry)
            self._name(run_id, trial)
            self._ended(run_id, entry, float("nan"))
        forget_metric_history(trial)
        self._running(trials)

    @contextmanager
    def _noting(self, lost: str = "") -> Iterator[None]:
        """Once results cannot be written, nothing of what follows is recorded."""
        self.lost = self.lost or lost
        try:
            yield
        except StorageError as error:
            self.lost = self.lost or str(error)

    def _name(self, run_id: str, trial: Trial) -> None:
        """Label a run that came from a distribution by what was sampled."""
        if run_id not in self.labels:
            self.labels[run_id] = {k: _label(v) for k, v in trial.config.items()}
            self.sampled(run_id, dict(self.labels[run_id]))

    def _run(self, trial: Trial) -> Run | None:
        try:
            return self.make(trial.config)
        except Exception:  # the user's own function; the trial has said why
            return None

    def _ended(self, run_id: str, entry: LedgerEntry, accuracy: float) -> None:
        label = ", ".join(f"{k}={v}" for k, v in self.labels.get(run_id, {}).items()) or run_id
        self.show.ended(label, entry.status, entry.reason, accuracy)
        if self.tracker is not None:
            self.tracker.submit(run_id)

    def _running(self, trials: list[Trial]) -> None:
        self.show.update(sum(trial.status == Trial.RUNNING for trial in trials))


class Halt(tune.Stopper):
    """Ends the sweep when its results cannot be written any more."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No single trial is stopped."""
        return False

    def stop_all(self) -> bool:
        """Whether the watch has heard of it."""
        return bool(self.watch.lost)


def _config(run: Run | None) -> dict[str, Any] | None:
    return run.model_dump(mode="json") if run else None


def _label(value: Any) -> Label:
    """A sampled value as a label: plain values stay, others become text."""
    value = value.item() if hasattr(value, "item") else value
    plain = isinstance(value, str | int | float | bool) or value is None
    return value if plain else json.dumps(value, default=str)
