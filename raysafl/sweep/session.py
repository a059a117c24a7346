"""Carries out the runs of a pack, and writes their results into the journal.

While a run goes on, its rows and its state are saved every `flush_seconds` in one file,
more seldom if they are so large that this takes long.
Runs that have ended by then are written together as one commit. So a crash at any point
neither loses nor doubles a row (`raysafl.storage.journal`).
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raysafl.core.work import Work
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Lockstep
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.statistics import ACCURACY
from raysafl.storage.store import Store
from raysafl.sweep.choices import FLUSH_SECONDS
from raysafl.sweep.open_run import OpenRun, rows_of
from raysafl.sweep.user_errors import describe_error, kept_traceback

# If a pack's checkpoints take longer than this to write, as they have gigabytes, they are
# written as many times more seldom, so that they take a twentieth of the time.
QUICK_SECONDS = FLUSH_SECONDS / 20
# They are at most so many times more seldom, since a disk may be slow for once.
MOST_SELDOM = 10


class End(NamedTuple):
    """How a run has ended, for the progress display.

    Args:
        run_id: the run.
        status: how it ended.
        reason: why, if it did not run all of its rounds.
        quality: the column by which it is judged.
        value: the last value of this column; NaN if it has none.
        label: the run's labels as text, which the driver fills in.
        result: the value as text, such as `test accuracy 81.30%`, likewise.
    """

    run_id: str
    status: Status
    reason: str
    quality: str = ACCURACY
    value: float = math.nan
    label: str = ""
    result: str = ""

    def __str__(self) -> str:
        told = [self.status.value, self.reason, "" if self.status.bad else self.result]
        return f"{self.label}: {', '.join(filter(None, told))}"

    @classmethod
    def of(cls, run_id: str, entry: LedgerEntry) -> "End":
        """Return how a run has ended, from its ledger entry."""
        quality = judged_by(entry.metrics)
        value = float(entry.metrics.get(quality, math.nan))
        return cls(run_id, entry.status, entry.reason, quality, value)


def judged_by(metrics: Mapping[str, Any]) -> str:
    """Return the column by which a run is judged, from `OpenRun.metrics`."""
    return next((name for name in metrics if name != "round"), ACCURACY)


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal, and not the user's own code, raised an error."""
    return isinstance(error, KeyboardInterrupt)


class Session:
    """Carries out runs in lock-step, each from its checkpoint, and writes them to a store.

    A run that raises an error is recorded as failed, and the others go on.

    Args:
        runs: the runs, in the order of their cells in `work`.
        store: the sweep's folder.
        work: trains and evaluates, in this process or on actors.
        origin: versions, host, device, engine and so on, for the ledger entries.
        flush_seconds: the time between two checkpoints that are quick to write.
        code: for each run, by its id, a digest of each of the user's own classes.
        ends_process: whether an error is meant to end this process, and is no failure
            of a run; by default a KeyboardInterrupt is.
        keep_states: whether the states are kept in which runs end.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        store: Store,
        work: Work,
        origin: Mapping[str, str],
        flush_seconds: float = FLUSH_SECONDS,
        code: Mapping[str, Mapping[str, str]] | None = None,
        ends_process: Callable[[BaseException], bool] = is_interrupt,
        keep_states: bool = False,
    ) -> None:
        self.store = store
        self.keep_states = keep_states
        self.origin = dict(origin)
        self.flush_seconds = flush_seconds
        # The time until the next checkpoints.
        self._pause = flush_seconds
        self.ends_process = ends_process
        self.lockstep = Lockstep[str](work)
        # The runs that have not ended, by id.
        self.open: dict[str, OpenRun] = {}
        # Runs all of whose rounds were run, but that have not been written yet.
        self._complete: list[OpenRun] = []
        # The ends of runs, and the runs with new rows, that nobody has asked for yet.
        self._ends: list[End] = []
        self._written: list[str] = []

        self._number_of_runs = len(runs)
        begun = set(store.open_runs())
        first_cell = 0
        for run in runs:
            own_code = (code or {}).get(run.id, {})
            self.open[run.id] = OpenRun(
                run, store, work, first_cell, own_code, self.origin, run.id in begun
            )
            first_cell += run.replicates
        # Why checkpoints were not used, a line for each; empty if all were.
        reasons = (own.begun_anew for own in self.open.values())
        self.begun_anew = "\n".join(filter(None, reasons))
        self._flushed = time.monotonic()
        # The run that a scheduler watches; it watches none if there are several.
        self._watched = next(iter(self.open.values()))
        self._end_complete()

    @property
    def share(self) -> float:
        """The part of the rounds of all runs that have been run, from 0 to 1."""
        open_runs = self.open.values()
        ended = self._number_of_runs - len(open_runs)
        parts = (own.mean_round / own.run.rounds for own in open_runs)
        return (ended + sum(parts)) / self._number_of_runs

    @property
    def mean_round(self) -> float:
        """How many rounds the open runs have run in the mean; 0 if none is open."""
        rounds = [own.mean_round for own in self.open.values()]
        return sum(rounds) / max(1, len(rounds))

    @property
    def done(self) -> bool:
        """Whether all runs have ended, and are written."""
        return not self.open and not self._complete

    def advance(
        self, seconds: float, halted: Callable[[], bool] = lambda: False
    ) -> bool:
        """Run rounds for some time, and then up to the next round that is evaluated.

        Args:
            seconds: how long. With 0, for schedulers that may stop the run after any
                report, all rows so far are written when this returns.
            halted: is asked after every round whether to return at once.

        Returns:
            Whether all runs have ended.
        """
        begin = time.monotonic()
        if not self.open:
            # All of their replicates were reused from other runs.
            self.flush()
        while self.open:
            evaluated = self._advance()
            now = time.monotonic()
            is_due = (evaluated and not seconds) or now - self._flushed > self._pause
            if is_due or not self.open:
                self.flush()
            if halted() or (evaluated and now - begin >= seconds):
                break
        return self.done

    def _advance(self) -> bool:
        """Run a round of every open run; return whether one of them was evaluated."""
        simulations = {i: own.simulation for i, own in self.open.items()}
        outcomes = self.lockstep.advance(simulations)
        evaluated = False
        for run_id, outcome in outcomes.items():
            own = self.open[run_id]
            if isinstance(outcome, BaseException):
                if self.ends_process(outcome):
                    raise outcome
                self._fail(own, outcome)
                continue
            own.take(outcome)
            evaluated = evaluated or bool(outcome)
        self._end_complete()
        return evaluated

    def _end_complete(self) -> None:
        """Put the runs aside all of whose rounds have been run."""
        for run_id in [i for i, own in self.open.items() if own.simulation.done]:
            self._complete.append(self.open.pop(run_id))

    def _fail(self, own: OpenRun, error: BaseException) -> None:
        """Record a failed run and the rows before its failure; its checkpoint stays."""
        del self.open[own.run.id]
        entry = failure(error, own.run, {**self.origin, **own.times})
        self.store.commit(own.rows(), {own.run.id: entry}, own.clients())
        self._written.append(own.run.id)
        self._ends.append(End.of(own.run.id, entry))
        # A search algorithm must not take its last accuracy for a result.
        own.latest = []

    def flush(self) -> None:
        """Write the runs that have ended, and rows and checkpoints of the others."""
        self._write_complete()
        began = time.monotonic()
        for own in self.open.values():
            own.flush()
            self._written.append(own.run.id)
        self._flushed = time.monotonic()
        times = min((self._flushed - began) / QUICK_SECONDS, MOST_SELDOM)
        slow = times * min(self.flush_seconds, FLUSH_SECONDS)
        self._pause = max(self.flush_seconds, slow)

    def _write_complete(self) -> None:
        """Write the runs all of whose rounds have been run: their models, then a commit."""
        if not self._complete:
            return
        rows = rows_of(self._complete)
        clients = pa.concat_tables(own.clients() for own in self._complete)
        # Why the pack's requests had to be divided, if they had.
        note = self.lockstep.most_reason
        origin = self.origin | ({"divided": note} if note else {})
        entries = {
            own.run.id: own.entry(origin | own.write_models()) for own in self._complete
        }
        for own in self._complete if self.keep_states else ():
            own.keep_state()
        self.store.commit(rows, entries, clients)
        self._ends += [End.of(run_id, entry) for run_id, entry in entries.items()]
        self._complete = []

    def take_ends(self) -> list[End]:
        """Return how runs have ended since the last call."""
        ends = self._ends
        self._ends = []
        return ends

    def take_written(self) -> list[str]:
        """Return the runs that have not ended and got new rows since the last call."""
        written = self._written
        self._written = []
        return list(dict.fromkeys(written))

    def metrics(self) -> dict[str, float | int]:
        """Return the last evaluated round of the run that a scheduler watches.

        If there are several runs, no scheduler watches, and the numbers are those of
        the first one.
        """
        return self._watched.metrics()

    def quality(self) -> float:
        """Return how good the open runs are in the mean; NaN if none is evaluated.

        It is the mean of the column by which they are judged, as runs with different
        objectives share no session.
        """
        last = [own.metrics() for own in self.open.values()]
        known = [m[judged_by(m)] for m in last if not math.isnan(m[judged_by(m)])]
        return float(np.mean(known)) if known else math.nan


def failure(
    error: BaseException, run: Run | None, origin: Mapping[str, Any]
) -> LedgerEntry:
    """Return the ledger entry of a failed run, with the user's line that raised the error.

    Args:
        error: the error.
        run: the run; None if it could not be made.
        origin: versions, host, the time that it took, and so on.
    """
    return LedgerEntry.now(
        run.model_dump(mode="json") if run else None,
        Status.FAILED,
        describe_error(error),
        traceback=kept_traceback(error),
        **origin,
    )
