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
from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.replicate import Replicate
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.files import atomic_write
from raysafl.storage.ledger import LedgerEntry, ReplicateEnd, Status
from raysafl.storage.rows import CLIENTS, ROUNDS, joined, table_of
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store
from raysafl.sweep.code.digest import changed_classes
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
        origin: versions, host, device, engine and so on, for its entry if it is stopped.
        is_begun: whether the folder holds a checkpoint of the run.
    """

    def __init__(
        self,
        run: Run,
        store: Store,
        work: Work,
        first_cell: int,
        code: Mapping[str, str],
        origin: Mapping[str, str],
        is_begun: bool,
    ) -> None:
        self.run = run
        self.store = store
        self.work = work
        self.code = dict(code)
        self.origin = dict(origin)
        self.simulation = Simulation(run, work, first_cell)
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        # Seconds that the run took before this attempt.
        self._spent_before = 0.0
        # The runs whose replicates it reuses.
        self._grown_from: list[str] = []
        # Why a checkpoint was not used; empty if there was none, or it was used.
        self.begun_anew = ""
        # The last record of each replicate that goes on or has stopped early.
        self.latest: list[Record] = []
        # The rows up to the last checkpoint.
        self.table = ROUNDS.empty_table()
        # The rows in the table of clients of replicates that another run has computed.
        self._taken_clients = CLIENTS.empty_table()
        # Records that are not rows of `table` yet.
        self.fresh: list[Record] = []
        if is_begun and (why := self._resume()):
            file = store.open_file(run.id)
            self.begun_anew = f"{file}: {why}, so the run begins anew"
            self.simulation = Simulation(run, work, first_cell)
        # How many rounds were over before, for those who ask how fast this attempt is.
        self._over_before = self.simulation.rounds_over

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
        self._grown_from = list(found.about.get("grown_from", []))
        self.table = found.rows
        known = client_rows(self.simulation)["replicate"]
        is_known = pc.is_in(found.clients["replicate"], pc.unique(known))
        self._taken_clients = found.clients.filter(pc.invert(is_known))
        replicates = enumerate(self.simulation.replicates)
        self.latest = [self._last_record(r) for r, own in replicates if _has_ended(own)]
        return ""

    def _last_record(self, r: int) -> Record:
        """Return the last record of a replicate, from the rows before the checkpoint."""
        rows = self.table.filter(pc.equal(self.table["replicate"], r))
        row = rows.sort_by("round").to_pylist()[-1]
        fields = {name: row.pop(name) for name in COLUMNS}
        del row["run_id"]
        metrics = {name: value for name, value in row.items() if value is not None}
        return Record(**fields, metrics=metrics)

    def take(self, records: list[Record]) -> None:
        """Take the records of a round; there are none if it was not evaluated."""
        self.fresh += records
        if records:
            self.latest = latest_of(self.simulation, self.latest, records)

    def rows(self) -> pa.Table:
        """Return all rows of the run so far."""
        if self.fresh:
            fresh = table_of(self.run.id, [vars(r) for r in self.fresh])
            self.table = joined([self.table, fresh]).combine_chunks()
            self.fresh = []
        return self.table

    def clients(self) -> pa.Table:
        """Return how the run serves each client, in the rounds in which that was measured."""
        return pa.concat_tables([self._taken_clients, client_rows(self.simulation)])

    def flush(self) -> None:
        """Save where the run is: its rows and its state, in one file."""
        content = OpenState(
            self._about(), self.rows(), self.clients(), dump(self.simulation)
        )
        self.store.flush(self.run.id, content)

    def keep_state(self) -> None:
        """Save the state in which the run has ended, from which a longer run can go on."""
        nothing = ROUNDS.empty_table(), CLIENTS.empty_table()
        content = OpenState(self._about(), *nothing, dump(self.simulation))
        self.store.keep_state(self.run.id, content)

    def _about(self) -> dict[str, Any]:
        about = about_open(self.run, self.code, self._spent, self.started)
        return about | {
            "rounds_over": self.simulation.rounds_over,
            "over_before": self._over_before,
            "rows": len(self.rows()),
            "grown_from": self._grown_from,
            "origin": self.origin,
        }

    @property
    def mean_round(self) -> float:
        """How many rounds are over, in the mean over replicates."""
        return self.simulation.rounds_over / self.run.replicates

    @property
    def _spent(self) -> float:
        """Seconds that the run took: its share of the time of its packs."""
        return self._spent_before + self.simulation.seconds

    @property
    def times(self) -> dict[str, Any]:
        """When the run started, and how many seconds it took, as a ledger entry has them."""
        return {"started": self.started, "seconds": self._spent}

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
        frozen = next(iter(named.values())).frozen
        dataset = self.work.dataset
        outputs = self.run.objective.num_outputs(dataset)
        seeds = self.run.seeds
        about = KeptModels(
            run_id=self.run.id,
            run=self.run.model_dump(mode="json"),
            keep=self.run.keep or "",
            column=self.run.kept_by,
            input_shape=dataset.train.x.shape[1:],
            input_type=str(dataset.train.x.dtype),
            scale=float(dataset.train.scale),
            shift=float(dataset.train.shift),
            features=dataset.features.names,
            num_outputs=outputs,
            num_classes=outputs if outputs == dataset.num_classes else 0,
            classes=tuple(map(str, dataset.names)),
            class_type=dataset.class_type,
            targets=dataset.targets,
            replicates=[
                KeptReplicate(r, seeds[r], own.round, own.value)
                for r, own in kept.items()
            ],
        )
        trained = [own.trained for own in named.values()]
        content = models_file(trained, frozen, dataset.features, about)
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
        diverged = _first_reason([own.diverged for own in replicates])
        stopped = _first_reason([own.stopped for own in replicates])
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
            code=self.code,
            **self.times,
            **({"grown_from": self._grown_from} if self._grown_from else {}),
            **({"over_before": self._over_before} if self._over_before else {}),
            **origin,
        )


def client_rows(simulation: Simulation) -> pa.Table:
    """Return what a simulation knows of the rows of its run in the table `clients/`.

    There is one for each replicate, round in which clients were evaluated, and client.

    There are none unless the run evaluates clients one by one.
    """
    tables = [CLIENTS.empty_table()]
    for r, replicate in enumerate(simulation.replicates):
        history = replicate.clients
        if history is None or not history.rounds or replicate.client_tests is None:
            continue
        tests = replicate.client_tests
        clients = len(history.participations_N)
        rounds = len(history.rounds)
        measured = np.concatenate(history.tables, axis=1)
        columns = {
            "run_id": pa.repeat(simulation.run.id, rounds * clients),
            "replicate": np.full(rounds * clients, r),
            "seed": np.full(rounds * clients, replicate.seed),
            "round": np.repeat(history.rounds, clients),
            "client": np.tile(np.arange(clients), rounds),
            "samples": np.tile(tests.held_N, rounds),
            "test_samples": np.tile(tests.tests_N, rounds),
        }
        for name, values in zip(ClientHistory.COLUMNS, measured, strict=True):
            # A value that was not measured is NaN there, and missing in the table.
            columns[name] = pa.array(values, from_pandas=True)
        table = pa.table({name: columns[name] for name in CLIENTS.names})
        tables.append(table.cast(CLIENTS))
    return pa.concat_tables(tables)


def about_open(
    run: Run, code: Mapping[str, str], spent: float, started: str
) -> dict[str, Any]:
    """Return what the file of an open run says of it.

    Args:
        run: the run.
        code: the digest of each of the user's classes in it, by name.
        spent: the seconds that it took so far.
        started: when it started, in UTC (ISO 8601).
    """
    return {
        "spent": spent,
        "started": started,
        "code": dict(code),
        "raysafl": __version__,
        "config": run.model_dump(mode="json"),
    }


def _first_reason(reasons: Sequence[str]) -> str:
    """Return the first reason among those of all replicates, and of how many it is one."""
    given = list(filter(None, reasons))
    if not given or len(reasons) == 1:
        return "".join(given)
    return f"{len(given)} of {len(reasons)} replicates: {given[0]}"


def _has_ended(replicate: Replicate) -> bool:
    """Whether a replicate goes on no more, and its last record counts: it has not diverged."""
    return replicate.done and not replicate.diverged


def latest_of(
    simulation: Simulation, before: Sequence[Record], records: Sequence[Record]
) -> list[Record]:
    """Return the last record of each replicate after a round: its own, or one of before."""
    ended = [r for r in before if _has_ended(simulation.replicates[r.replicate])]
    last = {record.replicate: record for record in [*ended, *records]}
    return [last[replicate] for replicate in sorted(last)]


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
        if column.is_scalar:
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


def rows_of(runs: Sequence[OpenRun]) -> pa.Table:
    """Return all rows of some runs so far; those of new runs become one table at once."""
    new = [own for own in runs if not len(own.table)]
    ids = [own.run.id for own in new for _ in own.fresh]
    rows = [vars(record) for own in new for record in own.fresh]
    others = (own.rows() for own in runs if len(own.table))
    return joined([table_of(ids, rows), *others])
