"""What the driver does on a trial's report: display, track, record lost trials."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import isfinite, isnan
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from raysafl.core.record import COLUMNS, Column
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.ray_private import forget_metric_history
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.manifest import Label
from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store
from raysafl.sweep.coordinator import NEWS, News, PackOf
from raysafl.sweep.definition import sample_key
from raysafl.sweep.measures import score_text
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.progress import Display, run_name
from raysafl.sweep.session import End
from raysafl.tracking.tracker import Tracker
from raysafl.version import __version__

# Seconds without a running trial until a warning. Starting a trial may take 30.
WAIT_SECONDS = 60.0
log = logging.getLogger(__name__)


class Watch(tune.Callback):
    """Follows the trials in the driver's process, where Tune calls its methods.

    They must not raise an error, as it would end the sweep.

    Args:
        store: the sweep's folder.
        pack_of: returns the pack of the configuration of a trial. It raises the user's
            error if no run can be made of a sampled configuration.
        display: shows the progress.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        hardware: what a trial needs, for a warning if there is no room for it.
        labels: the labels of the runs that are known beforehand, by run id.
        sampled: is called with the id and the labels of each run that Tune has sampled,
            and the run, or None if none could be made.
        code_of: returns the digests of a run's classes that are the user's.
        stopped_by: what may stop a run early, for the reason in its ledger entry.
    """

    def __init__(
        self,
        store: Store,
        pack_of: PackOf,
        display: Display,
        tracker: Tracker | None,
        hardware: Hardware,
        labels: Mapping[str, Mapping[str, Label]],
        sampled: Callable[[str, dict[str, Label], Run | None], None],
        code_of: Callable[[Run], dict[str, str]],
        stopped_by: str = "the scheduler",
    ) -> None:
        self.store = store
        self.pack_of = pack_of
        self.display = display
        self.tracker = tracker
        self.hardware = hardware
        self.labels = dict(labels)
        # The trials whose sampled run has its labels.
        self._labelled: set[str] = set()
        self.sampled = sampled
        self.code_of = code_of
        self.stopped_by = stopped_by
        # What is known about further columns; read when it is needed.
        self._columns: dict[str, Column] = {}
        # Packs of several runs that could not be carried out as a whole.
        self.unfinished: list[Pack] = []
        # When a trial was last seen to run; None after the warning that none does.
        self.last_ran: float | None = time.monotonic()
        # The runs whose end was shown.
        self.shown: set[str] = set()
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
        """Take a report: show the runs that have ended, and have new rows logged."""
        news = _news(result)
        for begun_anew in filter(None, news.begun_anew.splitlines()):
            if begun_anew not in self.told:
                self.told.add(begun_anew)
                log.warning(begun_anew)
        with self._recording(news.lost):
            self._label(trial, news.ends)
            for end in news.ends:
                self._show_end(end)
            changed = [*(end.run_id for end in news.ends), *news.written]
            if self.tracker is not None and changed:
                self.tracker.submit(changed)
        self._running(trials)

    def on_trial_complete(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Record a run that a scheduler stopped, or note a pack that is to be halved."""
        result = trial.last_result or {}
        pack = self._pack(trial)
        if pack is not None and _news(result).halve:
            self._halve(pack)
        elif pack is not None and len(pack.runs) == 1 and not self.ends_early:
            with self._recording():
                self._record_if_stopped(pack.runs[0], result)
        forget_metric_history(trial)
        self._running(trials)

    def _record_if_stopped(self, run: Run, result: Mapping[str, Any]) -> None:
        """Record the one run of a trial, unless it has ended: it was stopped."""
        before = self.store.ledger_entry(run.id)
        if run.id in self.shown or (before is not None and before.status.decided):
            return
        reason = f"stopped by {self.stopped_by} after round {result.get('round')}"
        ends = [
            ReplicateEnd(replicate=r, status=Status.STOPPED, reason=reason, **own)
            for r, own in enumerate(_news(result).rows)
        ]
        entry = LedgerEntry.now(
            run.model_dump(mode="json"),
            Status.STOPPED,
            reason,
            replicates=ends,
            code=self.code_of(run),
            raysafl=__version__,
        )
        self.store.write_ledger(run.id, entry)
        self._show_end(End(run.id, entry.status, reason))
        if self.tracker is not None:
            self.tracker.submit([run.id])

    def on_trial_error(
        self, iteration: int, trials: list[Trial], trial: Trial, **info: Any
    ) -> None:
        """Take a trial whose process was lost again and again.

        A pack of several runs is tried in halves. A single run is recorded as failed.
        """
        pack = self._pack(trial)
        if pack is not None and len(pack.runs) > 1:
            self._halve(pack)
        else:
            last = str(trial.get_pickled_error() or "its process was lost").strip()
            with self._recording():
                self._record_lost(trial, pack, last.splitlines()[-1])
        forget_metric_history(trial)
        self._running(trials)

    def _halve(self, pack: Pack) -> None:
        """Note a pack of which the halves are to be tried.

        Its trial may have ended without a report of the runs that it had ended.
        """
        self.unfinished.append(pack)
        with self._recording():
            ended = self.store.ended_in(pack.id)
            ends = [End.of(i, entry) for i, entry in ended.items()]
            new = [end for end in ends if end.run_id not in self.shown]
            for end in new:
                self._show_end(end)
            if self.tracker is not None and new:
                self.tracker.submit([end.run_id for end in new])

    def _record_lost(self, trial: Trial, pack: Pack | None, reason: str) -> None:
        """Record as failed the one run of a trial whose process was lost."""
        run = pack.runs[0] if pack else None
        run_id = run.id if run else sample_key(trial.config)
        config = run.model_dump(mode="json") if run else None
        entry = LedgerEntry.now(config, Status.FAILED, reason)
        self.store.write_ledger(run_id, entry)
        end = End(run_id, entry.status, entry.reason)
        self._label(trial, [end])
        self._show_end(end)
        if self.tracker is not None:
            self.tracker.submit([run_id])

    @contextmanager
    def _recording(self, lost: str = "") -> Iterator[None]:
        """Keep the reason if results cannot be written, instead of raising an error."""
        self.lost = self.lost or lost
        try:
            yield
        except StorageError as error:
            self.lost = self.lost or str(error)

    def _label(self, trial: Trial, ends: Sequence[End]) -> None:
        """Label a sampled run by the values that were sampled for it, as soon as it is known."""
        if PACK_KEY in trial.config or trial.trial_id in self._labelled:
            return
        self._labelled.add(trial.trial_id)
        pack = self._pack(trial)
        runs = {run.id: run for run in pack.runs} if pack else {}
        for run_id in runs or [end.run_id for end in ends]:
            if run_id not in self.labels:
                self.labels[run_id] = labels_of(trial.config)
                self.sampled(run_id, dict(self.labels[run_id]), runs.get(run_id))

    def _pack(self, trial: Trial) -> Pack | None:
        try:
            return self.pack_of(trial.config)
        except Exception:
            # The user's own function has raised, and the trial has recorded it.
            return None

    def _show_end(self, end: End) -> None:
        """Show how a run ended, unless that was reported by an earlier try of its trial."""
        if end.run_id not in self.shown:
            self.shown.add(end.run_id)
            label = run_name(self.labels.get(end.run_id, {}), end.run_id)
            result = self._score_text(end.quality, end.value)
            self.display.add_run(label, end.status, end.reason, result)

    def _running(self, trials: list[Trial]) -> None:
        """Show how many runs are open, and how good they are in the mean."""
        reports = [t.last_result for t in trials if t.status == Trial.RUNNING]
        all_news = [_news(report or {}) for report in reports]
        known = [news for news in all_news if isfinite(news.value)]
        qualities = {news.judged_by for news in known}
        text = ""
        # Runs that are judged by different columns have no mean.
        if len(qualities) == 1:
            total = sum(news.running for news in known)
            weighted = sum(news.running * news.value for news in known)
            text = self._score_text(qualities.pop(), weighted / total, digits=1)
        self.display.update(sum(news.running for news in all_news), text)

    def _score_text(self, quality: str, value: float, digits: int = 2) -> str:
        """Write a value of the column by which runs are judged; nothing if it is NaN."""
        if isnan(value):
            return ""
        if quality not in COLUMNS and quality not in self._columns:
            # A number is shown as it is if it is not known what it means.
            with suppress(ValueError, StorageError):
                self._columns = self.store.manifest().columns
        return score_text(quality, value, self._columns, digits)


class Halt(tune.Stopper):
    """Ends the sweep when it cannot go on or is not to, and runs when the user's stoppers say so.

    Args:
        watch: learns that the sweep cannot go on.
        stoppers: the user's. Where one of them ends the whole sweep, the runs that have
            begun save where they are, as after Ctrl-C, and none counts as stopped.
    """

    def __init__(self, watch: Watch, stoppers: Sequence[tune.Stopper] = ()) -> None:
        self.watch = watch
        self.stoppers = stoppers
        self.told = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Whether one of the user's stoppers stops this trial."""
        # Each is asked, as a stopper may count the reports.
        return any([stopper(trial_id, result) for stopper in self.stoppers])

    def stop_all(self) -> bool:
        """Whether the sweep is to end before its trials do."""
        if not self.watch.ends_early and any(s.stop_all() for s in self.stoppers):
            log.warning("`stop` ends the sweep: each run writes where it is")
            self.told = True
            self.watch.interrupt()
        if self.watch.interrupted and not self.told:
            self.told = True
            log.warning(
                "stopping: each run writes where it is; a second signal ends it at once"
            )
        return self.watch.ends_early


def labels_of(config: Mapping[str, Any]) -> dict[str, Label]:
    """Return the labels of a run that was made of a sampled configuration."""
    return {name: _label(value) for name, value in config.items()}


def _news(result: Mapping[str, Any]) -> News:
    """Return what a report says to the driver alone; a report without it says nothing."""
    news: News = result.get(NEWS, News())
    return news


def _label(value: Any) -> Label:
    """Return a sampled value as a label: plain values stay, others become JSON text."""
    value = value.item() if hasattr(value, "item") else value
    plain = isinstance(value, str | int | float | bool) or value is None
    return value if plain else json.dumps(value, default=str)
