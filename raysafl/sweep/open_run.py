"""A run that has begun and not ended: its rounds, its rows so far, and its checkpoint."""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysafl.core.record import COLUMNS, Record
from raysafl.core.work import Work
from raysafl.kept.content import KeptModels, KeptReplicate
from raysafl.kept.content import dump as models_file
from raysafl.simulation.checkpoint import dump, restore
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.files import atomic_write
from raysafl.storage.integrity import RowSum, difference, row_sums
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.paths import Location
from raysafl.storage.rows import ROUNDS, joined, table_of
from raysafl.storage.store import Store
from raysafl.sweep.client_rows import client_rows
from raysafl.sweep.measures import quality_of
from raysafl.sweep.stale import changed_classes
from raysafl.version import __version__


class OpenRun:
    """One run of a pack, from its checkpoint, if any, until it has ended.

    A checkpoint that is damaged, or of another run, or of other code is not used, and
    neither is one whose rows are not those that were written. The run then begins anew,
    and `begun_anew` says why.

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
        # The last record of each replicate that goes on or has stopped early.
        self.latest: list[Record] = []
        # The rows that earlier attempts have written, and those of this attempt.
        self._earlier = ROUNDS.empty_table()
        self._table = ROUNDS.empty_table()
        # Rows of this attempt that are not in `_table` yet.
        self._fresh: list[Record] = []
        # How many evaluations of clients are in the table `clients/`.
        self._clients_written = 0
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
            written = [RowSum(*own) for own in extra["rows"]]
            changed = changed_classes(extra.get("code"), self.code)
        except (ValueError, KeyError, TypeError) as error:
            return str(error)
        if changed:
            return f"the code of {', '.join(changed)} has changed since"

        rows = self.store.table([self.run.id])
        self._earlier = rows.filter(pc.less(rows["round"], self.simulation.round))
        why = difference(dict(enumerate(written)), dict(enumerate(self.sums())))
        if why:
            return f"the rows before it are damaged ({why})"
        replicates = enumerate(self.simulation.replicates)
        self.latest = [self._last_record(r) for r, own in replicates if own.stopped]
        return ""

    def _last_record(self, r: int) -> Record:
        """Return the last record of a replicate, from the rows before the checkpoint."""
        rows = self._earlier.filter(pc.equal(self._earlier["replicate"], r))
        row = rows.sort_by("round").to_pylist()[-1]
        fields = {name: row.pop(name) for name in COLUMNS}
        del row["run_id"]
        metrics = {name: value for name, value in row.items() if value is not None}
        return Record(**fields, metrics=metrics)

    @property
    def checkpoint(self) -> Location:
        """The file from which the run goes on if it is interrupted."""
        return self.store.checkpoint(self.run.id)

    def take(self, records: list[Record]) -> None:
        """Take the records of a round; there are none if it was not evaluated."""
        self._fresh += records
        if not records:
            return
        here = {record.replicate for record in records}
        stopped = [
            record
            for record in self.latest
            if record.replicate not in here
            and self.simulation.replicates[record.replicate].stopped
        ]
        self.latest = sorted([*stopped, *records], key=lambda record: record.replicate)

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

    def write_clients(self) -> None:
        """Write how the run serves each client, if there is anything new."""
        evaluated = sum(
            len(own.clients.rounds) for own in self.simulation.replicates if own.clients
        )
        if evaluated != self._clients_written:
            self.store.write_clients(self.run.id, client_rows(self.simulation))
            self._clients_written = evaluated

    def _clients_entry(self) -> dict[str, Any]:
        """Return what the ledger entry says of the run's rows in `clients/`."""
        if self.run.eval_clients is None:
            return {}
        sums = row_sums(client_rows(self.simulation)).get(self.run.id, {})
        total = sum(sums.values(), RowSum())
        return {"client_rows": total.rows, "client_digest": total.digest}

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
        """Return the last evaluated round, see `metrics_of`."""
        return metrics_of(self.run, self.latest)

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
        replicates = self.simulation.replicates
        diverged = next((own.diverged for own in replicates if own.diverged), "")
        stopped = next((own.stopped for own in replicates if own.stopped), "")
        ends = []
        for r, replicate in enumerate(replicates):
            own = sums.get(r, RowSum())
            status = Status.DIVERGED if replicate.diverged else Status.FINISHED
            ends.append(
                ReplicateEnd(
                    replicate=r,
                    status=status,
                    reason=replicate.diverged or replicate.stopped,
                    rows=own.rows,
                    digest=own.digest,
                    partition_seed=self.run.partition_seeds[r],
                )
            )
        return LedgerEntry.now(
            self.run.model_dump(mode="json"),
            Status.DIVERGED if diverged else Status.FINISHED,
            diverged or stopped,
            replicates=ends,
            metrics=self.metrics(),
            started=self.started,
            seconds=self._spent,
            code=self.code,
            **self._clients_entry(),
            **origin,
        )

    def _attempt(self) -> pa.Table:
        """Return the rows of this attempt."""
        if self._fresh:
            fresh = table_of(self.run.id, [vars(r) for r in self._fresh])
            self._table = joined([self._table, fresh]).combine_chunks()
            self._fresh = []
        return self._table


def metrics_of(run: Run, records: Sequence[Record]) -> dict[str, float | int]:
    """Return what is reported to Tune of an evaluated round.

    Args:
        run: the run.
        records: the records of the round, one for each replicate; there are none before
            the first evaluated round.

    Returns:
        The number of the round from 1, or 0, and the means over replicates, or NaN, of
        the columns of single numbers that are measured on test or validation data. The
        column by which the run is judged comes first.
    """
    values: dict[str, list[float]] = {quality_of(run): [], "test_loss": []}
    # Tune ends a sweep at a report that lacks the metric that the sweep goes by.
    for name, column in run.columns().items():
        if not column.is_list:
            values.setdefault(name, [])
    for record in records:
        scores = {
            "test_accuracy": record.test_accuracy,
            "test_loss": record.test_loss,
            **record.metrics,
        }
        for name, value in scores.items():
            if isinstance(value, float):
                values.setdefault(name, []).append(value)
    means = {name: float(np.mean(own or [np.nan])) for name, own in values.items()}
    return {"round": max((record.round + 1 for record in records), default=0), **means}
