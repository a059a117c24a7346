"""Runs one run and writes its rows, its checkpoints and its ledger entry.

The rounds between two checkpoints are an interval. The rows of an interval are one
Parquet file. A crash at any point neither loses nor doubles a row because of the order
of writing: first the rows of the interval, then its checkpoint. When the run has ended,
first the ledger entry is written, then the checkpoint is deleted.
"""

import datetime
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, astuple
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raysafl.core.record import Record
from raysafl.core.work import Work
from raysafl.runtime.provenance import provenance
from raysafl.simulation.checkpoint import dump, restore
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.files import atomic_write
from raysafl.storage.integrity import (
    Plan,
    RowSum,
    difference,
    gap,
    keys_of,
    row_sums,
)
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.store import Store
from raysafl.sweep.code_digest import CodeDigests
from raysafl.sweep.stale import changed_classes
from raysafl.version import __version__

# Seconds between two checkpoints: the most work that a crash loses.
FLUSH_SECONDS = 30.0


class Session:
    """Carries out one run from its checkpoint, if any, and writes it to a store.

    A checkpoint that is damaged, or of another run, or of other code is not used, and
    neither is one whose rows are not those that were written. The run then begins anew,
    with a warning, and `begun_anew` says why.

    Args:
        run: the run.
        store: the sweep's folder.
        work: trains and evaluates, in this process or on actors.
        origin: versions, host, device, engine and so on, for the run's ledger entry.
        flush_seconds: the time between two checkpoints.
        code: a digest of each of the user's own classes in the run, by name.
    """

    def __init__(
        self,
        run: Run,
        store: Store,
        work: Work,
        origin: dict[str, str],
        flush_seconds: float = FLUSH_SECONDS,
        code: Mapping[str, str] | None = None,
    ) -> None:
        self.run = run
        self.code = dict(code or {})
        self.store = store
        self.origin = origin
        self.flush_seconds = flush_seconds
        self.simulation = Simulation(run, work)
        self.checkpoint = store.checkpoint(run.id)
        # Seconds that the run took until the last checkpoint.
        self.spent = 0.0
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        # Why a checkpoint was not used; empty if there was none, or it was used.
        self.begun_anew = ""
        # For each replicate, the sum of its rows up to the last checkpoint.
        self._sums = [RowSum()] * run.replicates
        if self.checkpoint.is_file():
            self._resume()
        # For each replicate, the sum of all rows that were written.
        self.sums = self._sums

        # Rows of rounds after the checkpoint were written before a crash; these rounds
        # are computed again.
        store.drop_parts(run.id, self.simulation.round)
        # The first round after the last checkpoint.
        self._interval = self.simulation.round
        # The rows of the rounds since the last checkpoint.
        self._rows: list[dict[str, Any]] = []
        self._checkpoint_time = time.monotonic()
        # The records of the last evaluated round, one for each replicate.
        self.latest: list[Record] = []
        # How often rows were written. The driver has MLflow updated only if it grows.
        self.writes = 0

    def _resume(self) -> None:
        """Go on from the checkpoint, or begin anew if it cannot be used."""
        content = self.checkpoint.read_bytes()
        try:
            extra = restore(self.simulation, content)
            spent = float(extra["spent"])
            started = str(extra["started"])
            # Checkpoints of earlier versions have no sums.
            written = [RowSum(*own) for own in extra.get("rows", [])]
            changed = changed_classes(extra.get("code"), self.code)
        except (ValueError, KeyError, TypeError) as error:
            return self._begin_anew(str(error))
        if changed:
            return self._begin_anew(
                f"the code of {', '.join(changed)} has changed since"
            )

        rows = self.store.table(self.run.id)
        rows = rows.filter(pc.less(rows["round"], self.simulation.round))
        if why := self._fault(rows, written):
            return self._begin_anew(f"the rows before it are damaged ({why})")
        self.spent = spent
        self.started = started
        self._sums = _by_replicate(self.run, rows)

    def _begin_anew(self, why: str) -> None:
        """Forget what the checkpoint has restored, and say why."""
        self.begun_anew = f"{self.checkpoint}: {why}, so the run begins anew"
        warnings.warn(self.begun_anew, stacklevel=4)
        self.simulation = Simulation(self.run, self.simulation.work)

    def _fault(self, rows: pa.Table, written: list[RowSum]) -> str:
        """Say how the rows before the checkpoint differ from those that were written."""
        run = self.run
        if written:
            found = row_sums(rows).get(run.id, {})
            return difference(dict(enumerate(written)), found)
        plan = Plan(run.rounds, run.eval_every, run.replicates, run.seed)
        live = [
            r for r, own in enumerate(self.simulation.replicates) if not own.diverged
        ]
        return gap(plan, keys_of(rows), self.simulation.round, live)

    def advance(self, seconds: float) -> bool:
        """Run rounds for some time, and then up to the next round that is evaluated.

        Args:
            seconds: how long. With 0, for schedulers that may stop the run after any
                report, all rows so far are written when this returns. Otherwise
                evaluations of the last rounds may still be computed.

        Returns:
            Whether the run has ended.
        """
        begin = time.monotonic()
        while not self.simulation.done:
            self._take(self.simulation.advance())
            now = time.monotonic()
            if now - self._checkpoint_time > self.flush_seconds:
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
        self.latest = [
            r for r in records if r.round == records[-1].round
        ] or self.latest

    def flush(self) -> None:
        """Write the rows since the last checkpoint, then a new checkpoint."""
        self.write_rows()
        now = time.monotonic()
        self.spent += now - self._checkpoint_time
        self._sums = self.sums
        content = dump(
            self.simulation,
            spent=self.spent,
            started=self.started,
            rows=[astuple(own) for own in self._sums],
            code=self.code,
            raysafl=__version__,
        )
        atomic_write(self.checkpoint, content)
        self._interval = self.simulation.round
        self._rows = []
        self._checkpoint_time = now

    def write_rows(self) -> None:
        """Write all rows since the last checkpoint as one file, or replace that file."""
        self._take(self.simulation.finish_evaluations())
        if self._rows:
            table = self.store.write_part(self.run.id, self._interval, self._rows)
            own = _by_replicate(self.run, table)
            self.sums = [a + b for a, b in zip(self._sums, own, strict=True)]
            self.writes += 1

    def metrics(self) -> dict[str, float | int]:
        """Return the last evaluated round for Tune's schedulers: means over replicates."""
        last = self.latest
        return {
            "round": last[-1].round + 1 if last else 0,
            "test_accuracy": float(
                np.mean([r.test_accuracy for r in last] or [np.nan])
            ),
            "test_loss": float(np.mean([r.test_loss for r in last] or [np.nan])),
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
                rows=own.rows,
                digest=own.digest,
            )
            for r, (why, own) in enumerate(zip(diverged, self._sums, strict=True))
        ]
        entry = LedgerEntry.now(
            self.run.model_dump(mode="json"),
            status,
            reason,
            replicates=replicates,
            metrics=self.metrics(),
            started=self.started,
            seconds=self.spent,
            code=self.code,
            **self.origin,
        )
        self.store.write_ledger(self.run.id, entry)
        self.checkpoint.unlink(missing_ok=True)


def _by_replicate(run: Run, rows: pa.Table) -> list[RowSum]:
    """Return the sum of the rows of each replicate of a run."""
    found = row_sums(rows).get(run.id, {})
    return [found.get(r, RowSum()) for r in range(run.replicates)]


def run_in_process(run: Run, store: Store, work: Work) -> None:
    """Carry out a run in this process: the reference that trials are compared with."""
    origin = {**provenance(), "device": torch.device("cpu").type}
    code = CodeDigests().of_run(run)
    Session(run, store, work, origin, code=code).advance(np.inf)
