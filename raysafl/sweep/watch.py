"""What the driver does on the news of a pack: display, track, record lost runs."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from raysafl.core.record import COLUMNS, ColumnDescription
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.manifest import Label, run_name
from raysafl.storage.paths import StorageError
from raysafl.storage.status import write_heartbeat
from raysafl.storage.store import Store
from raysafl.sweep.measures import score_text
from raysafl.sweep.open_pack import News
from raysafl.sweep.packs import Pack
from raysafl.sweep.progress import Display
from raysafl.sweep.session import End
from raysafl.version import __version__

if TYPE_CHECKING:
    from raysafl.tracking.tracker import Tracker

log = logging.getLogger(__name__)
# From one time that other processes are told how far the sweep is to the next.
HEARTBEAT_SECONDS = 5.0


class Watch:
    """Follows the packs of a sweep in the driver's process, whoever carries them out.

    Args:
        store: the sweep's folder.
        display: shows the progress.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        labels: the labels of the runs that are known beforehand, by run id.
        code_of: returns the digests of a run's classes that are the user's.
        stopped_by: what may stop a run early, for the reason in its ledger entry.
    """

    def __init__(
        self,
        store: Store,
        display: Display,
        tracker: "Tracker | None",
        labels: Mapping[str, Mapping[str, Label]],
        code_of: Callable[[Run], dict[str, str]],
        stopped_by: str = "the scheduler",
    ) -> None:
        self.store = store
        self.display = display
        self.tracker = tracker
        self.labels = dict(labels)
        self.code_of = code_of
        self.stopped_by = stopped_by
        # What is known about further columns; read when it is needed.
        self._columns: dict[str, ColumnDescription] = {}
        # Packs of several runs that could not be carried out as a whole.
        self.unfinished: list[Pack] = []
        # The runs whose end was shown.
        self.shown: set[str] = set()
        # What was said of runs whose checkpoint was not used.
        self.told: set[str] = set()
        # Why results cannot be written any more; the sweep then ends.
        self.lost = ""
        # Whether a signal asked the driver to end: the sweep ends then too.
        self.interrupted = False
        # When other processes were told how far the sweep is.
        self._last_heartbeat = -math.inf

    @property
    def ends_early(self) -> bool:
        """Whether the sweep is to end before its packs do."""
        return bool(self.lost) or self.interrupted

    def interrupt(self) -> None:
        """Let the sweep end: each pack saves where it is, and goes on later."""
        self.display.enter("saving checkpoints")
        self.interrupted = self.display.is_cut = True

    def take(self, news: News) -> None:
        """Take the news of a pack: show the runs that have ended, and track new rows."""
        for begun_anew in filter(None, news.begun_anew.splitlines()):
            if begun_anew not in self.told:
                self.told.add(begun_anew)
                log.warning(begun_anew)
        with self.recording(news.lost):
            self._show_ends(news.ends)
            self._track([*(end.run_id for end in news.ends), *news.written])

    def complete(self, news: News, pack: Pack) -> None:
        """Record a run that a scheduler or a rule stopped, or note a pack to be halved.

        Args:
            news: the last news of a pack that has been carried out, or was stopped.
            pack: the pack.
        """
        self.display.finished += 0.0 if news.halve else pack.work
        if news.halve:
            self._halve(pack)
        elif len(pack.runs) == 1 and not self.ends_early:
            with self.recording():
                self._record_if_stopped(pack.runs[0], news)

    def lose(self, reason: str, pack: Pack) -> None:
        """Take a pack whose process was lost again and again.

        A pack of several runs is tried in halves. A single run is recorded as failed.

        Args:
            reason: how its process was lost.
            pack: the pack.
        """
        if len(pack.runs) > 1:
            self._halve(pack)
            return
        self.display.finished += pack.work
        (run,) = pack.runs
        stored = run.model_dump(mode="json")
        self.refuse(run.id, LedgerEntry.now(stored, Status.FAILED, reason))

    def refuse(self, run_id: str, failed: LedgerEntry) -> None:
        """Record that a run could not be carried out.

        Args:
            run_id: its id, or a name for it if it could not be made.
            failed: its ledger entry.
        """
        with self.recording():
            self.store.commit_end(run_id, failed)
            self._show_ends([End(run_id, failed.status, failed.reason)])
            self._track([run_id])

    def show(self, running: Sequence[tuple[Pack, News]]) -> None:
        """Show how many runs are open, in which round they are, and how good in the mean.

        Args:
            running: the packs that are being carried out, with the last news of each.
        """
        all_news = [news for _, news in running]
        known = [news for news in all_news if math.isfinite(news.value)]
        qualities = {news.judged_by for news in known}
        text = ""
        # Runs that are judged by different columns have no mean.
        if len(qualities) == 1:
            total = sum(news.running for news in known)
            weighted = sum(news.running * news.value for news in known)
            if total:
                text = self._score_text(qualities.pop(), weighted / total, digits=1)
        # All runs of a pack have begun that has not reported yet.
        count = sum(
            news.running if news.metrics else len(pack.runs) for pack, news in running
        )
        at = ""
        if rounds := max((news.rounds for news in all_news), default=0):
            mean = sum(news.running * news.round for news in all_news) / max(1, count)
            at = f"round {mean:.0f} of {rounds}{f' at {text}' if text else ''}"
        packs = [(pack.work, news.share) for pack, news in running]
        self.display.update(count, at, packs)
        now = time.monotonic()
        if now - self._last_heartbeat > HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            # The sweep goes on if this is lost.
            with suppress(StorageError):
                write_heartbeat(self.store, self.display.line)

    def _record_if_stopped(self, run: Run, news: News) -> None:
        """Record the one run of a pack, unless it has ended: it was stopped."""
        if run.id in self.shown or self.store.decided({run.id}):
            return
        reason = f"stopped by {self.stopped_by} after round {news.metrics.get('round')}"
        ends = [
            ReplicateEnd(
                replicate=r,
                status=Status.STOPPED,
                reason=reason,
                partition_seed=seed,
            )
            for r, seed in enumerate(run.partition_seeds)
        ]
        entry = LedgerEntry.now(
            run.model_dump(mode="json"),
            Status.STOPPED,
            reason,
            replicates=ends,
            metrics=dict(news.metrics),
            code=self.code_of(run),
            raysafl=__version__,
        )
        self.store.commit_end(run.id, entry)
        self._show_ends([End.of(run.id, entry)])
        self._track([run.id])

    def _halve(self, pack: Pack) -> None:
        """Note a pack of which the halves are to be tried.

        It may have ended without news of the runs that it had ended.
        """
        self.unfinished.append(pack)
        with self.recording():
            ended = self.store.decided({run.id for run in pack.runs})
            ends = [End.of(run_id, entry) for run_id, entry in ended.items()]
            new = [end for end in ends if end.run_id not in self.shown]
            self._show_ends(new)
            self._track([end.run_id for end in new])

    def _track(self, run_ids: Sequence[str]) -> None:
        """Have the new rows of some runs, or their ends, logged to MLflow."""
        if self.tracker is not None and run_ids:
            self.tracker.submit(run_ids)

    @contextmanager
    def recording(self, lost: str = "") -> Iterator[None]:
        """Keep the reason if results cannot be written, instead of raising an error."""
        self.lost = self.lost or lost
        try:
            yield
        except StorageError as error:
            self.lost = self.lost or str(error)

    def _show_ends(self, ends: Iterable[End]) -> None:
        """Show how runs ended, but for those that an earlier try of their pack has reported."""
        new = []
        for end in ends:
            if end.run_id not in self.shown:
                self.shown.add(end.run_id)
                label = run_name(self.labels.get(end.run_id, {}), end.run_id)
                result = self._score_text(end.quality, end.value)
                new.append(end._replace(label=label, result=result))
        if new:
            self.display.add_runs(new)

    def _score_text(self, quality: str, value: float, digits: int = 2) -> str:
        """Write a value of the column by which runs are judged; nothing if it is NaN."""
        if math.isnan(value):
            return ""
        if quality not in COLUMNS and quality not in self._columns:
            # A number is shown as it is if it is not known what it means.
            with suppress(ValueError, StorageError):
                self._columns = self.store.manifest().columns
        return score_text(quality, value, self._columns, digits)
