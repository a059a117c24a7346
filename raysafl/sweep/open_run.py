"""A run that has begun and not ended: its rounds, its rows so far, and its checkpoint."""

import datetime
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import astuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysafl.core.record import Record
from raysafl.core.work import Work
from raysafl.kept.content import KeptModels, KeptReplicate
from raysafl.kept.content import dump as models_file
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
from raysafl.storage.paths import Location
from raysafl.storage.rows import ROUNDS, joined, table_of
from raysafl.storage.store import Store
from raysafl.sweep.measures import quality_of
from raysafl.sweep.stale import changed_classes
from raysafl.version import __version__


class OpenRun:
    """One run of a pack, from its checkpoint, if any, until it has ended.

    A checkpoint that is damaged, or of another run, or of other code is not used, and
    neither is one whose rows are not those that were written. The run then begins anew,
    with a warning, and `begun_anew` says why.

    Args:
        run: the run.
        store: the sweep's folder.
        work: trains and evaluates the runs of the pack.
        first_cell: the number of the run's first cell in `work`.
        code: a digest of each of the user's own classes in the run, by name.
        has_files: whether the folder holds rows or a checkpoint of the run.
    """

    def __init__(
        self,
        run: Run,
        store: Store,
        work: Work,
        first_cell: int,
        code: Mapping[str, str],
        has_files: bool,
    ) -> None:
        self.run = run
        self.store = store
        self.work = work
        self.code = dict(code)
        self.simulation = Simulation(run, work, first_cell)
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        # Seconds that the run took before this attempt.
        self._spent_before = 0.0
        # Why a checkpoint was not used; empty if there was none, or it was used.
        self.begun_anew = ""
        # The records of the last evaluated round, one for each replicate.
        self.latest: list[Record] = []
        # The rows that earlier attempts have written, and those of this attempt.
        self._earlier = ROUNDS.empty_table()
        self._table = ROUNDS.empty_table()
        # Rows of this attempt that are not in `_table` yet.
        self._fresh: list[Record] = []
        if has_files:
            self._resume(work, first_cell)
        # The first round of this attempt.
        self._first = self.simulation.round

    def _resume(self, work: Work, first_cell: int) -> None:
        """Go on from the checkpoint, if there is one that can be used."""
        if self.checkpoint.is_file():
            why = self._restore()
            if why:
                self.begun_anew = f"{self.checkpoint}: {why}, so the run begins anew"
                warnings.warn(self.begun_anew, stacklevel=4)
                self.simulation = Simulation(self.run, work, first_cell)
                self._spent_before = 0.0
                self._earlier = ROUNDS.empty_table()
        # Rows of rounds after the checkpoint were written before a crash; these rounds
        # are computed again.
        self.store.drop_parts(self.run.id, self.simulation.round)

    def _restore(self) -> str:
        """Restore the checkpoint. Say why it cannot be used; empty if it can."""
        try:
            extra = restore(self.simulation, self.checkpoint.read_bytes())
            self._spent_before = float(extra["spent"])
            self.started = str(extra["started"])
            # Checkpoints of earlier versions have no sums.
            written = [RowSum(*own) for own in extra.get("rows", [])]
            changed = changed_classes(extra.get("code"), self.code)
        except (ValueError, KeyError, TypeError) as error:
            return str(error)
        if changed:
            return f"the code of {', '.join(changed)} has changed since"

        rows = self.store.table([self.run.id])
        self._earlier = rows.filter(pc.less(rows["round"], self.simulation.round))
        why = self._fault(written)
        return f"the rows before it are damaged ({why})" if why else ""

    def _fault(self, written: Sequence[RowSum]) -> str:
        """Say how the rows before the checkpoint differ from those that were written."""
        run = self.run
        if written:
            return difference(dict(enumerate(written)), dict(enumerate(self.sums())))
        plan = Plan(run.rounds, run.eval_every, run.replicates, run.seed)
        live = [
            r for r, own in enumerate(self.simulation.replicates) if not own.diverged
        ]
        return gap(plan, keys_of(self._earlier), self.simulation.round, live)

    @property
    def checkpoint(self) -> Location:
        """The file from which the run goes on if it is interrupted."""
        return self.store.checkpoint(self.run.id)

    def take(self, records: list[Record]) -> None:
        """Take the records of an evaluated round."""
        self._fresh += records
        self.latest = records or self.latest

    def rows(self) -> pa.Table:
        """Return all rows of the run so far."""
        return joined([self._earlier, self._attempt()])

    def sums(self) -> list[RowSum]:
        """Return the sum of the rows so far of each replicate."""
        found = row_sums(self.rows()).get(self.run.id, {})
        return [found.get(r, RowSum()) for r in range(self.run.replicates)]

    def write_rows(self) -> None:
        """Write the rows of this attempt as one part, in place of the part before."""
        if len(table := self._attempt()):
            self.store.write_part(self.run.id, self._first, table)

    def flush(self) -> None:
        """Write the rows of this attempt, then a checkpoint after them."""
        self.write_rows()
        content = dump(
            self.simulation,
            spent=self._spent,
            started=self.started,
            rows=[astuple(own) for own in self.sums()],
            code=self.code,
            raysafl=__version__,
        )
        atomic_write(self.checkpoint, content)

    @property
    def _spent(self) -> float:
        """Seconds that the run took: its share of the time of its packs."""
        return self._spent_before + self.simulation.seconds

    def metrics(self) -> dict[str, float | int]:
        """Return the last evaluated round: its number, and means over replicates.

        They are those of the columns of single numbers that are measured on test or
        validation data. The column by which the run is judged comes first.
        """
        values: dict[str, list[float]] = {quality_of(self.run): [], "test_loss": []}
        for record in self.latest:
            scores = {
                "test_accuracy": record.test_accuracy,
                "test_loss": record.test_loss,
                **record.metrics,
            }
            for name, value in scores.items():
                if isinstance(value, float):
                    values.setdefault(name, []).append(value)
        means = {name: float(np.mean(own or [np.nan])) for name, own in values.items()}
        return {"round": self.latest[-1].round + 1 if self.latest else 0, **means}

    def write_models(self) -> dict[str, str]:
        """Write the models that the run keeps, before its ledger entry.

        Returns:
            The field of the ledger entry that names the file's digest; none if the run
            keeps no model.
        """
        kept = self.simulation.kept()
        if not kept:
            return {}
        named = {r: self.work.model_of(own.w_P) for r, own in kept.items()}
        first = next(iter(named.values()))
        seeds = self.run.seeds
        about = KeptModels(
            run_id=self.run.id,
            run=self.run.model_dump(mode="json"),
            keep=self.run.keep or "",
            column=self.run.kept_by,
            input_shape=first.input_shape,
            num_outputs=first.num_outputs,
            replicates=[
                KeptReplicate(r, seeds[r], own.round, own.value)
                for r, own in kept.items()
            ],
        )
        content = models_file(
            [own.trained for own in named.values()], first.frozen, about
        )
        atomic_write(self.store.model(self.run.id), content)
        return {"kept": hashlib.sha256(content).hexdigest()}

    def entry(
        self, sums: Mapping[int, RowSum], origin: Mapping[str, str]
    ) -> LedgerEntry:
        """Return the ledger entry of the run, all of whose rounds have been run.

        Args:
            sums: the sum of the rows of each replicate that has any.
            origin: versions, host, device, engine and so on.
        """
        diverged = [replicate.diverged for replicate in self.simulation.replicates]
        reason = next(filter(None, diverged), "")
        ends = []
        for r, why in enumerate(diverged):
            own = sums.get(r, RowSum())
            status = Status.DIVERGED if why else Status.FINISHED
            ends.append(
                ReplicateEnd(
                    replicate=r,
                    status=status,
                    reason=why,
                    rows=own.rows,
                    digest=own.digest,
                )
            )
        return LedgerEntry.now(
            self.run.model_dump(mode="json"),
            Status.DIVERGED if reason else Status.FINISHED,
            reason,
            replicates=ends,
            metrics=self.metrics(),
            started=self.started,
            seconds=self._spent,
            code=self.code,
            **origin,
        )

    def _attempt(self) -> pa.Table:
        """Return the rows of this attempt."""
        if self._fresh:
            fresh = table_of(self.run.id, [vars(r) for r in self._fresh])
            self._table = joined([self._table, fresh]).combine_chunks()
            self._fresh = []
        return self._table
