"""The driver's side of the packs of a sweep: what it gives, and what it does on their news."""

import logging
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from raysafl.cluster.provenance import commit, package_digest
from raysafl.core.record import COLUMNS, ColumnDescription
from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.manifest import Entry, Label, run_name
from raysafl.storage.paths import StorageError
from raysafl.storage.rows import of_cells
from raysafl.storage.status import write_heartbeat
from raysafl.storage.store import RunResult
from raysafl.sweep.measures import Measures, score_text
from raysafl.sweep.news import GivenPack, News, Terms, judged_by
from raysafl.sweep.packs import Pack
from raysafl.sweep.progress import Ending
from raysafl.version import __version__

if TYPE_CHECKING:
    from raysafl.sweep.attempt import Attempt
    from raysafl.sweep.more_rounds import MoreRounds
    from raysafl.tracking.tracker import Tracker

log = logging.getLogger(__name__)
# Seconds between two reports of a pack, unless every evaluated round is reported, or
# checkpoints are to be made more often.
REPORT_SECONDS = 2.0
# From one time that other processes are told how far the sweep is to the next.
HEARTBEAT_SECONDS = 5.0


class Watch:
    """Follows the packs of a sweep in the driver's process, whoever carries them out.

    It says what is given with each pack. On the news of a pack it writes results, which it
    alone does while runs go on, shows how far the sweep is, and has runs logged.

    Args:
        attempt: what is to be done. This process holds the lock of its folder.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        more_rounds: which cells go on from shorter ones; None for none.
    """

    def __init__(
        self,
        attempt: "Attempt",
        tracker: "Tracker | None" = None,
        more_rounds: "MoreRounds | None" = None,
    ) -> None:
        self.options = attempt.options
        self.sweep = attempt.sweep
        self.store = attempt.store
        self.display = attempt.display
        self.digests = attempt.digests
        # The cells to do of each run, as runs of one seed each; none if a search algorithm asks
        # for the runs.
        self.todo = list(attempt.todo.values())
        self.tracker = tracker
        self.more_rounds = more_rounds
        # The runs by id, and the ids of those that have each cell.
        self.entries: dict[str, Entry] = {}
        self.runs_of: defaultdict[str, list[str]] = defaultdict(list)
        for entry in self.store.manifest().entries:
            self.register(entry)
        # How cells have ended, in this attempt or before; those that failed before are tried
        # again.
        ended = self.store.ledger().items()
        self.ended = {cell: end for cell, end in ended if end.status.decided}
        # What is known about further columns; read when it is needed.
        self._columns: Mapping[str, ColumnDescription] = {}
        # The packs that are being carried out, by id, with their last news.
        self._running: dict[str, tuple[Pack, News]] = {}
        # Packs of several cells that could not be carried out as a whole.
        self.unfinished: list[Pack] = []
        # What was said of cells whose checkpoint was not used.
        self._told: set[str] = set()
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
            self.runs_of[cell].append(entry.run_id)

    def labels_of(self, pack: Pack) -> dict[str, Label]:
        """Return the labels of the first run of a pack."""
        return dict(self.entries[self.runs_of[pack.runs[0].id][0]].labels)

    @property
    def ends_early(self) -> bool:
        """Whether the sweep is to end before its packs do."""
        return bool(self.lost) or self.interrupted

    def interrupt(self) -> None:
        """Let the sweep end: each pack goes on later from its checkpoint."""
        self.interrupted = self.display.is_cut = True

    # What whoever carries out a pack is given

    @cached_property
    def goal(self) -> tuple[str, str]:
        """The metric that searchers and schedulers go by, and its mode."""
        return self.store.manifest().goal or Measures().goal

    @cached_property
    def terms(self) -> Terms:
        """What holds for all packs."""
        options = self.options
        seconds = min(REPORT_SECONDS, options.flush_seconds)
        return Terms(
            commit=commit(),
            package=package_digest() if options.address else "",
            report_seconds=0.0 if options.is_one_by_one else seconds,
            flush_seconds=options.flush_seconds,
            engine=options.engine,
            metric=self.goal[0],
            keep_states=options.keep_states,
        )

    def given(self, pack: Pack) -> GivenPack:
        """Return what whoever carries out a pack is given, with where its cells were."""
        code = {run.id: self.digests.of_run(run) for run in pack.runs}
        found = []
        for file in self.store.files("open"):
            head = self.store.checkpoint(file, with_state=False)
            if head is None or not head.cells.keys() & code.keys():
                continue
            # The cells begin anew if their states are damaged.
            if (whole := self.store.checkpoint(file)) is not None:
                found.append(whole)
        if self.more_rounds is not None:
            found += self.more_rounds.checkpoints(pack.runs)
        return GivenPack(pack, code, found)

    # What the driver is told of a pack

    def begin(self, pack: Pack) -> None:
        """Take note that a pack is being carried out."""
        # It may have been paused, or its process was lost.
        self._running.setdefault(pack.id, (pack, News()))
        self._show()

    def take(self, news: News, pack: Pack) -> None:
        """Write the results in the news of a pack; show and track what is new."""
        for begun_anew in filter(None, news.begun_anew.splitlines()):
            if begun_anew not in self._told:
                self._told.add(begun_anew)
                log.warning(begun_anew)
        self.lost = self.lost or news.lost
        with self.recording():
            self._write(news)
            if news.checkpoint:
                self.store.save(pack.id, news.checkpoint)
                self._track(c.id for c in pack.runs if c.id not in self.ended)
        self._running[pack.id] = pack, news.in_brief
        self._show()

    def complete(self, pack: Pack) -> None:
        """Take a pack that has been carried out, or that a scheduler or a rule stopped.

        If its last news ask for halves, it is noted.
        """
        _, news = self._running.pop(pack.id, (pack, News()))
        self.display.finished += 0.0 if news.halve else pack.work
        if news.halve:
            self.unfinished.append(pack)
        elif not self.ends_early:
            rules = {"the scheduler": self.sweep.scheduler, "`stop`": self.options.stop}
            by = " or ".join(name for name, rule in rules.items() if rule)
            reason = f"stopped by {by} after round {news.metrics.get('round')}"
            with self.recording():
                self._end(pack, Status.STOPPED, reason, news.metrics)
                if all(self.is_decided(run.id) for run in pack.runs):
                    self.store.drop_checkpoint(pack.id)
        self._show()

    def lose(self, reason: str, pack: Pack) -> None:
        """Take a pack whose process was lost again and again.

        A pack of several cells is tried in halves. A single one has failed.

        Args:
            reason: how its process was lost.
            pack: the pack.
        """
        self._running.pop(pack.id, None)
        if len(pack.runs) > 1:
            self.unfinished.append(pack)
        else:
            self.display.finished += pack.work
            with self.recording():
                self._end(pack, Status.FAILED, reason, {})
        self._show()

    def refuse(self, failed: CellEnd) -> None:
        """Record that a cell could not be carried out."""
        with self.recording():
            self._write(News(ends=[failed]))

    def is_decided(self, cell: str) -> bool:
        """Whether a cell has ended, so that no other attempt is made."""
        return cell in self.ended and self.ended[cell].status.decided

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep the reason if results cannot be written, instead of raising an error."""
        try:
            yield
        except StorageError as error:
            self.lost = self.lost or str(error)

    # What it does then

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

    def _end(
        self, pack: Pack, status: Status, reason: str, metrics: Mapping[str, Any]
    ) -> None:
        """Record how the cells of a pack end that have not ended, where they were last."""
        left = [run for run in pack.runs if run.id not in self.ended]
        if not left:
            return
        far = self.store.going_on({run.id for run in left})
        ends = []
        for run in left:
            known = far.cells.get(run.id)
            times = known.model_dump(include={"started", "seconds"}) if known else {}
            end = CellEnd.now(
                run.id,
                status,
                reason,
                **times,
                seed=run.seed,
                partition_seed=run.partition_seeds[0],
                metrics=dict(metrics),
                code=self.digests.of_run(run),
                raysafl=__version__,
            )
            ends.append(end)
        self._write(News(ends=ends, rows=far.rows, clients=far.clients))

    def _track(self, cells: Iterable[str]) -> None:
        """Have what is new of some cells logged to MLflow."""
        run_ids = dict.fromkeys(i for cell in cells for i in self.runs_of[cell])
        if self.tracker is not None and run_ids:
            self.tracker.submit(list(run_ids))

    def _show(self) -> None:
        """Show how many runs are open, in which round they are, and how good in the mean."""
        running = self._running.values()
        all_news = [news for _, news in running]
        known = [n for n in all_news if n.running and math.isfinite(n.value)]
        text = ""
        # Runs that are judged by different columns have no mean.
        if len(qualities := {news.judged_by for news in known}) == 1:
            weights = [news.running for news in known]
            mean = float(np.average([news.value for news in known], weights=weights))
            text = self._score_text(qualities.pop(), mean, digits=1)
        cells = (run.id for pack, _ in running for run in pack.runs)
        left = (self.runs_of[cell] for cell in cells if cell not in self.ended)
        at = ""
        if rounds := max((news.rounds for news in all_news), default=0):
            count = sum(news.running for news in all_news)
            mean = sum(news.running * news.round for news in all_news) / max(1, count)
            at = f"round {mean:.0f} of {rounds}{f' at {text}' if text else ''}"
        packs = [(pack.work, news.share) for pack, news in running]
        self.display.update(len(set().union(*left)), at, packs)
        now = time.monotonic()
        if now - self._last_heartbeat > HEARTBEAT_SECONDS:
            self._last_heartbeat = now
            # The sweep goes on if this is lost.
            with suppress(StorageError):
                write_heartbeat(self.store, self.display.line)

    def _show_ends(self, cells: Iterable[str]) -> None:
        """Show the runs all of whose cells have ended, now that some more have."""
        told = []
        for run_id in dict.fromkeys(i for cell in cells for i in self.runs_of[cell]):
            entry = self.entries[run_id]
            ends = [self.ended[cell] for cell in entry.cells if cell in self.ended]
            if len(ends) < len(entry.cells):
                continue
            run = RunResult(run_id, entry.labels, entry.config, ends)
            parts = [run.status.value, run.reason]
            if not run.status.bad:
                quality = judged_by(run.worst.metrics)
                values = [float(end.metrics.get(quality, math.nan)) for end in ends]
                parts.append(self._score_text(quality, float(np.mean(values))))
            text = f"{run_name(run.labels, run_id)}: {', '.join(filter(None, parts))}"
            told.append(Ending(text, run.status.bad))
        if told:
            self.display.add_runs(told)

    def _score_text(self, quality: str, value: float, digits: int = 2) -> str:
        """Write a value of the column by which runs are judged; nothing if it is NaN."""
        if math.isnan(value):
            return ""
        if quality not in COLUMNS and quality not in self._columns:
            # A number is shown as it is if it is not known what it means.
            with suppress(ValueError, StorageError):
                self._columns = self.store.manifest().columns
        return score_text(quality, value, self._columns, digits)
