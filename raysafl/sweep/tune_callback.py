"""What the driver does on a trial's report: display, track, record lost trials."""

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
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.manifest import Label
from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store
from raysafl.sweep.definition import Make, sample_key
from raysafl.sweep.progress import Display, run_name
from raysafl.tracking import Tracker
from raysafl.version import __version__

# Seconds without a running trial until a warning. Starting a trial may take 30.
WAIT_SECONDS = 60.0
log = logging.getLogger(__name__)


class Watch(tune.Callback):
    """Follows the trials in the driver's process, where Tune calls its methods.

    They must not raise an error, as it would end the sweep.

    Args:
        store: the sweep's folder.
        make: makes a run from the configuration of a trial.
        display: shows the progress.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        hardware: what a trial needs, for a warning if there is no room for it.
        labels: the labels of the runs that are known beforehand, by run id.
        sampled: is called with the id and the labels of each run that Tune has sampled.
        code_of: returns the digests of a run's classes that are the user's.
    """

    def __init__(
        self,
        store: Store,
        make: Make,
        display: Display,
        tracker: Tracker | None,
        hardware: Hardware,
        labels: Mapping[str, Mapping[str, Label]],
        sampled: Callable[[str, dict[str, Label]], None],
        code_of: Callable[[Run], dict[str, str]],
    ) -> None:
        self.store = store
        self.make = make
        self.display = display
        self.tracker = tracker
        self.hardware = hardware
        self.labels = dict(labels)
        self.sampled = sampled
        self.code_of = code_of
        # When a trial was last seen to run; None after the warning that none does.
        self.last_ran: float | None = time.monotonic()
        # For each run id: its trial, and how often that has written rows.
        self.seen: dict[str, tuple[str, int | None]] = {}
        # What was said of runs whose checkpoint was not used.
        self.told: set[str] = set()
        # Why results cannot be written any more; `Halt` then ends the sweep.
        self.lost = ""
        # Whether a signal asked the driver to end, or Ray is lost: `Halt` ends the sweep
        # then too.
        self.interrupted = False

    @property
    def ends_early(self) -> bool:
        """Whether the sweep is to end before its trials do."""
        return bool(self.lost) or self.interrupted

    def interrupt(self) -> None:
        """Let `Halt` end the sweep: each trial saves where it is, and goes on later."""
        self.interrupted = True

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        """Let Tune pickle a callback that does nothing in place of this one.

        Tune pickles its callbacks to restore them later, which raysafl never does.
        """
        return tune.Callback, ()

    def on_trial_start(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Update the display, as one more trial runs."""
        self._running(trials)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Warn once if no trial has run for a while, and say what they wait for."""
        if any(trial.status == Trial.RUNNING for trial in trials):
            self.last_ran = time.monotonic()
        elif (
            self.last_ran is not None
            and time.monotonic() - self.last_ran > WAIT_SECONDS
        ):
            self.last_ran = None
            log.warning(
                "no trial has run for %.0f s: each waits until the cluster has %s free. Perhaps a "
                "node was lost or is not yet added, or others use the cluster. `ray status` "
                "shows what is free",
                WAIT_SECONDS,
                self.hardware.describe(),
            )
            self._running(trials)

    def on_trial_result(
        self,
        iteration: int,
        trials: list[Trial],
        trial: Trial,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Take a report: label a run that was sampled, and have its new rows logged."""
        run_id = result["run_id"]
        begun_anew = result.get("begun_anew", "")
        if begun_anew not in ("", *self.told):
            self.told.add(begun_anew)
            log.warning(begun_anew)
        with self._recording(result.get("lost", "")):
            self._label_run(run_id, trial)
            writes = trial.trial_id, result.get("writes")
            if self.tracker is not None and self.seen.get(run_id) != writes:
                self.seen[run_id] = writes
                self.tracker.submit(run_id)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record a run that a scheduler stopped, and show how the run ended."""
        result = trial.last_result or {}
        run_id = str(result.get("run_id", ""))
        with self._recording():
            entry = self.store.ledger_entry(run_id)
            if not entry and not self.ends_early:
                reason = f"stopped by the scheduler after round {result.get('round')}"
                run = self._run(trial)
                ends = [
                    ReplicateEnd(
                        replicate=r, status=Status.STOPPED, reason=reason, **own
                    )
                    for r, own in enumerate(result.get("rows", []))
                ]
                entry = LedgerEntry.now(
                    _config(run),
                    Status.STOPPED,
                    reason,
                    replicates=ends,
                    code=self.code_of(run) if run else None,
                    raysafl=__version__,
                )
                self.store.write_ledger(run_id, entry)
            if entry:
                self._show_end(run_id, entry, result.get("test_accuracy", float("nan")))
        forget_metric_history(trial)
        self._running(trials)

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record a run as failed whose process was lost again and again."""
        run = self._run(trial)
        run_id = run.id if run else sample_key(trial.config)
        last = (
            str(trial.get_pickled_error() or "its process was lost")
            .strip()
            .splitlines()[-1]
        )
        entry = LedgerEntry.now(_config(run), Status.FAILED, last)
        with self._recording():
            self.store.write_ledger(run_id, entry)
            self._label_run(run_id, trial)
            self._show_end(run_id, entry, float("nan"))
        forget_metric_history(trial)
        self._running(trials)

    @contextmanager
    def _recording(self, lost: str = "") -> Iterator[None]:
        """Keep the reason if results cannot be written, instead of raising an error."""
        self.lost = self.lost or lost
        try:
            yield
        except StorageError as error:
            self.lost = self.lost or str(error)

    def _label_run(self, run_id: str, trial: Trial) -> None:
        """Label a run by the values that were sampled for it, if it has no labels yet."""
        if run_id not in self.labels:
            self.labels[run_id] = {k: _label(v) for k, v in trial.config.items()}
            self.sampled(run_id, dict(self.labels[run_id]))

    def _run(self, trial: Trial) -> Run | None:
        try:
            return self.make(trial.config)
        except Exception:
            # The user's own function has raised, and the trial has recorded it.
            return None

    def _show_end(self, run_id: str, entry: LedgerEntry, accuracy: float) -> None:
        label = run_name(self.labels.get(run_id, {}), run_id)
        self.display.add_run(label, entry.status, entry.reason, accuracy)
        if self.tracker is not None:
            self.tracker.submit(run_id)

    def _running(self, trials: list[Trial]) -> None:
        self.display.update(sum(trial.status == Trial.RUNNING for trial in trials))


class Halt(tune.Stopper):
    """Ends the sweep when `Watch` has learned that it cannot go on, or is not to."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.told = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Never stop a single trial."""
        return False

    def stop_all(self) -> bool:
        """Whether the sweep is to end before its trials do."""
        if self.watch.interrupted and not self.told:
            self.told = True
            log.warning(
                "stopping: each run writes where it is; a second signal ends it at once"
            )
        return self.watch.ends_early


def _config(run: Run | None) -> dict[str, Any] | None:
    return run.model_dump(mode="json") if run else None


def _label(value: Any) -> Label:
    """Return a sampled value as a label: plain values stay, others become JSON text."""
    value = value.item() if hasattr(value, "item") else value
    plain = isinstance(value, str | int | float | bool) or value is None
    return value if plain else json.dumps(value, default=str)
