"""A cell that has begun and not ended: its rounds, and what its end leaves."""

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raysafl.core.record import Record
from raysafl.core.work import Work
from raysafl.kept.content import AboutModel
from raysafl.kept.content import dump as model_file
from raysafl.simulation.checkpoint import SavedReplicate, restore
from raysafl.simulation.per_client import ClientHistory
from raysafl.simulation.replicate import Replicate
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Simulation
from raysafl.storage.ledger import CellEnd, HowFar, Status
from raysafl.storage.rows import CLIENTS
from raysafl.sweep.measures import quality_of
from raysafl.sweep.user_errors import describe_error, kept_traceback
from raysafl.version import __version__


class OpenCell:
    """One cell of a pack, until it has ended.

    Args:
        run: the run of this one seed.
        work: trains and evaluates the cells of the pack.
        number: the number of the cell in `work`.
        code: a digest of each of the user's own classes in the run, by name.
    """

    def __init__(
        self, run: Run, work: Work, number: int, code: Mapping[str, str]
    ) -> None:
        assert run.replicates == 1
        self.run = run
        self.id = run.id
        self.work = work
        self.code = dict(code)
        self.simulation = Simulation(run, work, number)
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        # Seconds that the cell took before this attempt, and the rounds that were over.
        self._spent_before = 0.0
        self._over_before = 0
        # Its last record, if it is evaluated and has not diverged.
        self.latest: Record | None = None

    @property
    def replicate(self) -> Replicate:
        """The replicate that is the cell."""
        (replicate,) = self.simulation.replicates
        return replicate

    def go_on(self, saved: SavedReplicate, far: HowFar, last: Record | None) -> None:
        """Go on from where the cell was.

        Args:
            saved: its state then.
            far: how far it was.
            last: its last record, if it has one.

        Raises:
            ValueError: the state cannot be used.
        """
        restore(self.replicate, saved)
        self._spent_before = far.seconds
        self._over_before = self.simulation.rounds_over
        self.started = far.started
        self.latest = last

    def take(self, records: Sequence[Record]) -> None:
        """Take the record of a round; there is none if it was not evaluated."""
        for record in records:
            self.latest = record
        if self.replicate.diverged:
            # A search algorithm must not take the last value before that for a result.
            self.latest = None

    @property
    def seconds(self) -> float:
        """How long the cell took: its share of the time of its packs."""
        return self._spent_before + self.simulation.seconds

    def how_far(self) -> HowFar:
        """Return how far the cell is."""
        return HowFar(
            seed=self.run.seed,
            round=self.simulation.rounds_over,
            rounds=self.run.rounds,
            started=self.started,
            seconds=self.seconds,
            code=self.code,
            raysafl=__version__,
        )

    def end(self, origin: Mapping[str, Any]) -> tuple[CellEnd, bytes]:
        """Return how the cell has ended, all of whose rounds have been run.

        Args:
            origin: versions, host, device, engine and so on.

        Returns:
            What the ledger says of it, and the file of the model that it keeps, which is
            empty if it keeps none.
        """
        replicate = self.replicate
        about = self.about(origin)
        if model := self._model():
            digest = hashlib.sha256(model).hexdigest()
            about |= {"kept": digest, "kept_bytes": len(model)}
        end = CellEnd.now(
            self.id,
            Status.DIVERGED if replicate.diverged else Status.FINISHED,
            replicate.diverged or replicate.stopped,
            metrics=metrics_of(self.run, [self.latest] if self.latest else []),
            **about,
        )
        return end, model

    def fail(self, error: BaseException, origin: Mapping[str, Any]) -> CellEnd:
        """Return how the cell has failed, by an error in one of its rounds."""
        # A search algorithm must not take its last accuracy for a result.
        self.latest = None
        return failure(error, self.id, self.about(origin))

    def about(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the ledger says of the cell however it ended."""
        return {
            "seed": self.run.seed,
            "partition_seed": self.run.partition_seeds[0],
            "num_classes": self.work.dataset.num_classes,
            "started": self.started,
            "seconds": self.seconds,
            "over_before": self._over_before,
            "code": self.code,
            **origin,
        }

    def _model(self) -> bytes:
        """Return the file of the model that the cell keeps; empty if it keeps none."""
        kept = self.replicate.kept()
        if kept is None:
            return b""
        model = self.work.model_of(kept.w_P)
        dataset = self.work.dataset
        outputs = self.run.objective.num_outputs(dataset)
        about = AboutModel(
            cell=self.id,
            run=self.run.model_dump(mode="json"),
            keep=self.run.keep or "",
            column=self.run.kept_by,
            round=kept.round,
            value=kept.value,
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
        )
        return model_file(model.trained, model.frozen, dataset.features, about)


def failure(error: BaseException, cell: str, about: Mapping[str, Any]) -> CellEnd:
    """Return the ledger entry of a failed cell, with the user's line that raised the error.

    Args:
        error: the error.
        cell: its id, or a name for a run that could not be made.
        about: versions, host, the time that it took, and so on.
    """
    return CellEnd.now(
        cell,
        Status.FAILED,
        describe_error(error),
        traceback=kept_traceback(error),
        **about,
    )


def client_rows(cell: str, replicate: Replicate) -> pa.Table | None:
    """Return the rows of a cell in the table `clients/`.

    There is one for each round in which clients were evaluated, and client. It is None if
    there is none, as in most runs, since to make an empty table takes as long.
    """
    history = replicate.clients
    if history is None or not history.rounds or replicate.client_tests is None:
        return None
    tests = replicate.client_tests
    clients = len(history.participations_N)
    rounds = len(history.rounds)
    measured = np.concatenate(history.tables, axis=1)
    columns = {
        "cell": pa.repeat(cell, rounds * clients),
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
    return table.cast(CLIENTS)


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
