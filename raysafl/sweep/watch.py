"""What the driver does on the news of a pack: write results, display, track."""

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from raysafl.core.record import COLUMNS, ColumnDescription
from raysafl.simulation.run import Run
from raysafl.storage.ledger import CellEnd, Checkpoint, Status
from raysafl.storage.manifest import Entry, Label, run_name
from raysafl.storage.paths import StorageError
from raysafl.storage.rows import of_cells
from raysafl.storage.status import write_heartbeat
from raysafl.storage.store import RunResult, Store
from raysafl.sweep.measures import score_text
from raysafl.sweep.news import News, judged_by
from raysafl.sweep.packs import Pack
from raysafl.sweep.progress import Display, Ending
from raysafl.version import __version__

if TYPE_CHECKING:
    from raysafl.tracking.tracker import Tracker

log = logging.getLogger(__name__)
# From one time that other processes are told how far the sweep is to the next.
HEARTBEAT_SECONDS = 5.0


class Watch:
    """Follows the packs of a sweep in the driver's process, whoever carries them out.

    It alone writes results while runs go on.

    Args:
        store: the sweep's folder, whose lock this process holds.
        display: shows the progress.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        entries: the runs that are known beforehand.
        code_of: returns the digests of a run's classes that are the user's.
        stopped_by: what may stop a run early, for the reason in the ledger.
    """

    def __init__(
        self,
        store: Store,
        display: Display,
        tracker: "Tracker | None",
        entries: Iterable[Entry],
        code_of: Callable[[Run], dict[str, str]],
        stopped_by: str = "the scheduler",
    ) -> None:
        self.store = store
        self.display = display
        self.tracker = tracker
        self.code_of = code_of
        self.stopped_by = stopped_by
        # The runs by id, and those that have each cell.
        self.entries: dict[str, Entry] = {}
        self._runs_of: dict[str, list[str]] = {}
        for entry in entries:
            self.register(entry)
        # How cells have ended, in this attempt or before; those that failed before are tried
        # again.
        self.ended = {c: end for c, end in store.ledger().items() if end.status.decided}
        # What is known about further columns; read when it is needed.
        self._columns: dict[str, ColumnDescription] = {}
        # Packs of several cells that could not be carried out as a whole.
        self.unfinished: list[Pack] = []
        # What was said of cells whose checkpoint was not used.
        self.told: set[str] = set()
        # Why results cannot be written any more; the sweep then ends.
        self.lost = ""
        # Whether a rule of the user's ends the sweep.
        self.interrupted = False
        # When other processes were told how far the sweep is.
        self._last_heartbeat = -math.inf

    def register(self, entry: Entry) -> None:
        """Take note of a run of the sweep."""
        self.entries[entry.run_id] = entry
        for cell in entry.cells:
            self._runs_of.setdefault(cell, []).append(entry.run_id)

    def runs_of(self, cell: str) -> list[str]:
        """Return the ids of the runs that have a cell."""
        return self._runs_of.get(cell, [])

    def labels_of(self, pack: Pack) -> dict[str, Label]:
        """Return the labels of the first run of a pack."""
        (run_id, *_) = self.runs_of(pack.runs[0].id)
        return dict(self.entries[run_id].labels)

    @property
    def ends_early(self) -> bool:
        """Whether the sweep is to end before its packs do."""
        return bool(self.lost) or self.interrupted

    def interrupt(self) -> None:
        """Let the sweep end: each pack goes on later from its checkpoint."""
        self.interrupted = self.display.is_cut = True

    def take(self, news: News, pack: Pack) -> None:
        """Write the results in the news of a pack; show and track what is new."""
        for begun_anew in filter(None, news.begun_anew.splitlines()):
            if begun_anew not in self.told:
                self.told.add(begun_anew)
                log.warning(begun_anew)
        self.lost = self.lost or news.lost
        with self.recording():
            self._write(news)
            if news.checkpoint:
                self.store.save(pack.id, news.checkpoint)
                self._track(news.saved)

    def _write(self, news: News) -> None:
        """Write how cells have ended, but for those of which this is known already."""
        new = [end for end in news.ends if end.cell not in self.ended]
        if not new:
            return
        cells = {end.cell for end in new}
        ends = self.store.take(
            new,
            of_cells(news.rows, cells),
            of_cells(news.clients, cells),
            {cell: own for cell, own in news.models.items() if cell in cells},
            {cell: own for cell, own in news.states.items() if cell in cells},
        )
        self.ended |= {end.cell: end for end in ends}
        self._show_ends(cells)
        self._track(cells)

    def is_decided(self, cell: str) -> bool:
        """Whether a cell has ended, so that no other attempt is made."""
        return cell in self.ended and self.ended[cell].status.decided

    def complete(self, news: News, pack: Pack) -> None:
        """Record cells that a scheduler or a rule stopped, or note a pack to be halved.

        Args:
            news: the last news of a pack that has been carried out, or was stopped.
            pack: the pack.
        """
        self.display.finished += 0.0 if news.halve else pack.work
        if news.halve:
            self.unfinished.append(pack)
        elif not self.ends_early:
            reason = (
                f"stopped by {self.stopped_by} after round {news.metrics.get('round')}"
            )
            with self.recording():
                self._end(pack, Status.STOPPED, reason, news.metrics)
                if all(self.is_decided(run.id) for run in pack.runs):
                    self.store.drop_checkpoint(pack.id)

    def lose(self, reason: str, pack: Pack) -> None:
        """Take a pack whose process was lost again and again.

        A pack of several cells is tried in halves. A single one has failed.

        Args:
            reason: how its process was lost.
            pack: the pack.
        """
        if len(pack.runs) > 1:
            self.unfinished.append(pack)
            return
        self.display.finished += pack.work
        with self.recording():
            self._end(pack, Status.FAILED, reason, {})

    def refuse(self, failed: CellEnd) -> None:
        """Record that a cell could not be carried out."""
        with self.recording():
            self._write(News(ends=[failed]))

    def show(self, running: Sequence[tuple[Pack, News]]) -> None:
        """Show how many runs are open, in which round they are, and how good in the mean.

        Args:
            running: the packs that are being carried out, with the last news of each.
        """
        all_news = [news for _, news in running]
        known = [n for n in all_news if n.running and math.isfinite(n.value)]
        text = ""
        # Runs that are judged by different columns have no mean.
        if len(qualities := {news.judged_by for news in known}) == 1:
            weights = [news.running for news in known]
            mean = float(np.average([news.value for news in known], weights=weights))
            text = self._score_text(qualities.pop(), mean, digits=1)
        cells = [run.id for pack, _ in running for run in pack.runs]
        open_runs = {
            run_id
            for cell in cells
            if cell not in self.ended
            for run_id in self.runs_of(cell)
        }
        at = ""
        if rounds := max((news.rounds for news in all_news), default=0):
            count = sum(news.running for news in all_news)
            mean = sum(news.running * news.round for news in all_news) / max(1, count)
            at = f"round {mean:.0f} of {rounds}{f' at {text}' if text else ''}"
        packs = [(pack.work, news.share) for pack, news in running]
        self.display.update(len(open_runs), at, packs)
        now = time.monotonic()
        if now - self._last_heartbeat > HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            # The sweep goes on if this is lost.
            with suppress(StorageError):
                write_heartbeat(self.store, self.display.line)

    def _end(
        self, pack: Pack, status: Status, reason: str, metrics: Mapping[str, Any]
    ) -> None:
        """Record how the cells of a pack end that have not ended, where they were last."""
        left = [run for run in pack.runs if run.id not in self.ended]
        if not left:
            return
        cells = {run.id for run in left}
        far = self.store.going_on(cells)
        ends = [
            CellEnd.now(
                run.id,
                status,
                reason,
                **_times(far, run.id),
                seed=run.seed,
                partition_seed=run.partition_seeds[0],
                metrics=dict(metrics),
                code=self.code_of(run),
                raysafl=__version__,
            )
            for run in left
        ]
        self._write(News(ends=ends, rows=far.rows, clients=far.clients))

    def _track(self, cells: Iterable[str]) -> None:
        """Have what is new of some cells logged to MLflow."""
        run_ids = [i for cell in cells for i in self.runs_of(cell)]
        if self.tracker is not None and run_ids:
            self.tracker.submit(list(dict.fromkeys(run_ids)))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the reason if results cannot be written, instead of raising an error."""
        try:
            yield
        except StorageError as error:
            self.lost = self.lost or str(error)

    def _show_ends(self, cells: Iterable[str]) -> None:
        """Show the runs all of whose cells have ended, now that some more have."""
        runs = [i for cell in cells for i in self.runs_of(cell)]
        told = []
        for run_id in dict.fromkeys(runs):
            entry = self.entries[run_id]
            ends = [self.ended[cell] for cell in entry.cells if cell in self.ended]
            if len(ends) == len(entry.cells):
                run = RunResult(run_id, entry.labels, entry.config, ends)
                told.append(Ending(self._text_of(run), run.status.bad))
        if told:
            self.display.add_runs(told)

    def _text_of(self, run: RunResult) -> str:
        """Say how a run has ended, and how good it is in the mean."""
        quality = judged_by(run.worst.metrics)
        values = [float(end.metrics.get(quality, math.nan)) for end in run.cells]
        score = (
            "" if run.status.bad else self._score_text(quality, float(np.mean(values)))
        )
        parts = filter(None, [run.status.value, run.reason, score])
        return f"{run_name(run.labels, run.run_id)}: {', '.join(parts)}"

    def _score_text(self, quality: str, value: float, digits: int = 2) -> str:
        """Write a value of the column by which runs are judged; nothing if it is NaN."""
        if math.isnan(value):
            return ""
        if quality not in COLUMNS and quality not in self._columns:
            # A number is shown as it is if it is not known what it means.
            with suppress(ValueError, StorageError):
                self._columns = self.store.manifest().columns
        return score_text(quality, value, self._columns, digits)


def _times(far: Checkpoint, cell: str) -> dict[str, object]:
    """Return when a cell began and how long it took, if a checkpoint says so."""
    known = far.cells.get(cell)
    return {} if known is None else {"started": known.started, "seconds": known.seconds}
