"""A run that has begun and not ended: its rounds, its rows so far, and its state."""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
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
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.rows import ROUNDS, joined, table_of
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store
from raysafl.sweep.client_rows import client_rows
from raysafl.sweep.code.stale import changed_classes
from raysafl.sweep.measures import quality_of
from raysafl.version import __version__


class OpenRun:
    """One run of a pack, from its checkpoint, if any, until it has ended.

    A checkpoint that is damaged, or of another run, or of other code is not used. The
    run then begins anew, and `begun_anew` says why.

    Args:
        run: the run.
        store: the sweep's folder.
        work: trains and evaluates the runs of the pack.
        first_cell: the number of the run's first cell in `work`.
        code: a digest of each of the user's own classes in the run, by name.
        is_begun: whether the folder holds a checkpoint of the run.
    """

    def __init__(
        self,
        run: Run,
        store: Store,
        work: Work,
        first_cell: int,
        code: Mapping[str, str],
        is_begun: bool,
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
        self._table = ROUNDS.empty_table()
        # Rows that are not in `_table` yet.
        self._fresh: list[Record] = []
        if is_begun and (why := self._resume()):
            file = store.open_file(run.id)
            self.begun_anew = f"{file}: {why}, so the run begins anew"
            self.simulation = Simulation(run, work, first_cell)

    def _resume(self) -> str:
        """Go on from the checkpoint. Say why it cannot be used; empty if it can."""
        try:
            found = self.store.resume(self.run.id)
            if found is None:
                return ""
            changed = changed_classes(found.about.get("code"), self.code)
            if changed:
                return f"the code of {', '.join(changed)} has changed since"
            restore(self.simulation, found.state)
        except ValueError as error:
            return str(error)
        self._spent_before = float(found.about["spent"])
        self.started = str(found.about["started"])
        self._table = found.rows
        replicates = enumerate(self.simulation.replicates)
        self.latest = [self._last_record(r) for r, own in replicates if own.stopped]
        return ""

    def _last_record(self, r: int) -> Record:
        """Return the last record of a replicate, from the rows before the checkpoint."""
        rows = self._table.filter(pc.equal(self._table["replicate"], r))
        row = rows.sort_by("round").to_pylist()[-1]
        fields = {name: row.pop(name) for name in COLUMNS}
        del row["run_id"]
        metrics = {name: value for name, value in row.items() if value is not None}
        return Record(**fields, metrics=metrics)

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
        if self._fresh:
            fresh = table_of(self.run.id, [vars(r) for r in self._fresh])
            self._table = joined([self._table, fresh]).combine_chunks()
            self._fresh = []
        return self._table

    def clients(self) -> pa.Table:
        """Return how the run serves each client, in the rounds in which that was measured."""
        return client_rows(self.simulation)

    def flush(self) -> None:
        """Save where the run is: its rows and its state, in one file."""
        about = {
            "spent": self._spent,
            "started": self.started,
            "code": self.code,
            "raysafl": __version__,
        }
        state = dump(self.simulation)
        content = OpenState(about, self.rows(), self.clients(), state)
        self.store.flush(self.run.id, content)

    @property
    def _spent(self) -> float:
        """Seconds that the run took: its share of the time of its packs."""
        return self._spent_before + self.simulation.seconds

    def metrics(self) -> dict[str, float | int]:
        """Return the last evaluated round, see `metrics_of`."""
        return metrics_of(self.run, self.latest)

    def write_models(self) -> dict[str, Any]:
        """Write the models that the run keeps, before its ledger entry.

        Returns:
            The fields of the ledger entry that hold the file's digest and its size; none
            if the run keeps no model.
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
        atomic_write(self.store.model(self.run.id), content, durable=True)
        return {
            "kept": hashlib.sha256(content).hexdigest(),
            "kept_bytes": len(content),
        }

    def entry(self, origin: Mapping[str, Any]) -> LedgerEntry:
        """Return the ledger entry of the run, all of whose rounds have been run.

        Args:
            origin: versions, host, device, engine and so on.
        """
        replicates = self.simulation.replicates
        diverged = next((own.diverged for own in replicates if own.diverged), "")
        stopped = next((own.stopped for own in replicates if own.stopped), "")
        ends = []
        for r, replicate in enumerate(replicates):
            status = Status.DIVERGED if replicate.diverged else Status.FINISHED
            ends.append(
                ReplicateEnd(
                    replicate=r,
                    status=status,
                    reason=replicate.diverged or replicate.stopped,
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
            **origin,
        )


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
