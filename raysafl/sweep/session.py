"""One run on its way to disk: rounds to Parquet, checkpoints, and how it ended.

Order of writing, so that a crash at any point loses or doubles nothing: the rows of an interval,
then the checkpoint behind it; at the end the ledger, then the checkpoint is removed.
"""

import datetime
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from raysafl.core.record import Record
from raysafl.core.work import Work
from raysafl.runtime.provenance import provenance
from raysafl.simulation.checkpoint import dump, restore
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.files import atomic_write
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store

FLUSH_SECONDS = 30.0


class Session:
    """A run being run into a store; goes on from its checkpoint if there is one."""

    def __init__(
        self,
        run: Run,
        store: Store,
        work: Work,
        origin: dict[str, str],
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self.run, self.store, self.origin, self.flush_seconds = run, store, origin, flush_seconds
        self.simulation = Simulation(run, work)
        self.checkpoint = store.checkpoint(run.id)
        self.spent = 0.0
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        if self.checkpoint.is_file():
            self._go_on()
        store.drop_parts(run.id, self.simulation.round)
        self._interval, self._rows = self.simulation.round, list[dict[str, Any]]()
        self._clock = self._flushed = time.monotonic()
        self.latest: list[Record] = []
        self.writes = 0  # of rows: whoever follows the run need not read what has not changed

    def _go_on(self) -> None:
        try:
            extra = restore(self.simulation, self.checkpoint.read_bytes())
            self.spent, self.started = float(extra["spent"]), str(extra["started"])
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, StorageError):
                raise
            raise ValueError(
                f"{self.checkpoint}: {error}; delete this file, and the run begins anew"
            ) from error

    def advance(self, seconds: float) -> bool:
        """Run rounds until an evaluated one ends after this many seconds; True at the end.

        With 0 seconds, for schedulers that may stop the run after any report, the rows so far
        are on disk whenever this returns. Otherwise the last rounds' evaluations may be under way.
        """
        begin = time.monotonic()
        while not self.simulation.done:
            self._take(self.simulation.advance())
            now = time.monotonic()
            if now - self._flushed > self.flush_seconds:
                self.flush()
            if self.simulation.last_round_evaluated and now - begin >= seconds:
                break
        if self.simulation.done:
            self._end()
        elif not seconds:
            self.write_rows()
        return self.simulation.done

    def _take(self, records: list[Record]) -> None:
        self._rows += [asdict(record) for record in records]
        self.latest = [r for r in records if r.round == records[-1].round] or self.latest

    def flush(self) -> None:
        """Write the rows since the last checkpoint, then a new checkpoint."""
        self.write_rows()
        now = time.monotonic()
        self.spent, self._clock = self.spent + now - self._clock, now
        content = dump(self.simulation, spent=self.spent, started=self.started)
        atomic_write(self.checkpoint, content)
        self._interval, self._rows, self._flushed = self.simulation.round, [], now

    def write_rows(self) -> None:
        """Write the rows since the last checkpoint, again if they were written before."""
        self._take(self.simulation.finish_evaluations())
        if self._rows:
            self.store.write_part(self.run.id, self._interval, self._rows)
            self.writes += 1

    def metrics(self) -> dict[str, float | int]:
        """The last evaluated round for Tune's schedulers and searchers: means over replicates."""
        alive = self.latest
        return {
            "round": alive[-1].round + 1 if alive else 0,
            "test_accuracy": float(np.mean([r.test_accuracy for r in alive] or [np.nan])),
            "test_loss": float(np.mean([r.test_loss for r in alive] or [np.nan])),
        }

    def _end(self) -> None:
        self.flush()
        diverged = [rep.diverged for rep in self.simulation.replicates]
        reason = next(filter(None, diverged), "")
        status = Status.DIVERGED if reason else Status.FINISHED
        replicates = [
            ReplicateEnd(
                replicate=r,
                status=Status.DIVERGED if why else Status.FINISHED,
                reason=why,
            )
            for r, why in enumerate(diverged)
        ]
        entry = LedgerEntry.now(
            self.run.model_dump(mode="json"),
            status,
            reason,
            replicates=replicates,
            metrics=self.metrics(),
            started=self.started,
            seconds=self.spent,
            **self.origin,
        )
        self.store.write_ledger(self.run.id, entry)
        self.checkpoint.unlink(missing_ok=True)


def in_process(run: Run, store: Store, work: Work) -> None:
    """Run to the end in this process: the readable reference of a trial."""
    Session(run, store, work, {**provenance(), "device": torch.device("cpu").type}).advance(np.inf)
