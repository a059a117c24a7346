"""The table `clients/`: how well the models of runs serve each single client.

Only runs with `eval_clients` have it. A run's rows are written as one file when it ends,
before its ledger entry, and the file is replaced as a whole if the run is computed
again. So nothing in it is ever doubled. `raysafl compact` puts the files together. A run
that is in both places, because the process was killed in between, counts once: both
hold the same rows.
"""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from raysafl.core.record import Column, Summary
from raysafl.storage.files import read_parquet, write_parquet
from raysafl.storage.paths import Location
from raysafl.storage.rows import ARROW_TYPES, RUN_ID, of_runs, without_runs

CLIENT_COLUMNS: Mapping[str, Column] = {
    "run_id": RUN_ID,
    "replicate": Column("int32", "number of the replicate, from 0", Summary.KEY),
    "seed": Column("int64", "the run's seed plus the replicate's number", Summary.KEY),
    "round": Column("int32", "number of the round, from 0", Summary.KEY),
    "client": Column("int32", "number of the client, from 0", Summary.KEY),
    "participations": Column(
        "int32", "rounds up to this one in which the client has trained"
    ),
    "samples": Column("int32", "training samples that the client holds"),
    "test_samples": Column("int32", "test samples by which the client is judged"),
    "quality": Column(
        "float64",
        "the metric of the run's objective, usually the accuracy, of the global model "
        "after the round on the client's test samples",
        Summary.MEAN,
    ),
    "loss": Column(
        "float64",
        "mean loss of the global model after the round on the client's test samples",
        Summary.MEAN,
    ),
    "personal_quality": Column(
        "float64",
        "the same metric of the client's personal model; empty if the run has none",
        Summary.MEAN,
    ),
}
CLIENTS = pa.schema(
    [(name, ARROW_TYPES[own.type]) for name, own in CLIENT_COLUMNS.items()]
)
ORDER = ("run_id", "replicate", "round", "client")


@dataclass(frozen=True)
class ClientTables:
    """The files in `clients/`.

    Args:
        compacted: the file of the runs that `raysafl compact` has put together.
        own: the files of single runs.
    """

    compacted: Location
    own: tuple[Location, ...]

    def read(self, run_ids: Collection[str] | None = None) -> pa.Table:
        """Return the rows of some runs, or (None) of all, sorted.

        A file that cannot be read is named in a warning and left out.
        """
        tables = []
        for file in [self.compacted, *self.own]:
            if file == self.compacted or run_ids is None or file.stem in run_ids:
                try:
                    tables.append(_read(file, run_ids))
                except ValueError as error:
                    warnings.warn(f"{error}; it is left out", stacklevel=3)
        return _joined(tables)

    def damaged(self) -> dict[Location, str]:
        """Return the files that cannot be read, each with the reason."""
        found = {}
        for file in [self.compacted, *self.own]:
            try:
                _read(file)
            except ValueError as error:
                found[file] = str(error)
        return found

    def compact(self, run_ids: Collection[str]) -> None:
        """Move the rows of some runs into the file of many.

        It is written first and the others are deleted afterwards. Damaged files stay.
        """
        moved = [file for file in self.own if file.stem in run_ids]
        bad = self.damaged()
        if not moved or self.compacted in bad:
            return
        moved = [file for file in moved if file not in bad]
        tables = [_read(file) for file in (self.compacted, *moved)]
        write_parquet(_joined(tables), self.compacted)
        for file in moved:
            file.unlink(missing_ok=True)

    def remove(self, run_ids: Collection[str] | None) -> None:
        """Delete the rows of some runs, or (None) all files.

        A file of many runs that cannot be read is deleted too: its runs are named by
        `raysafl verify`.
        """
        for file in self.own:
            if run_ids is None or file.stem in run_ids:
                file.unlink(missing_ok=True)
        if run_ids is None:
            self.compacted.unlink(missing_ok=True)
            return
        try:
            rows = _read(self.compacted)
        except ValueError:
            self.compacted.unlink(missing_ok=True)
            return
        kept = without_runs(rows, run_ids)
        if not len(kept):
            self.compacted.unlink(missing_ok=True)
        elif len(kept) < len(rows):
            write_parquet(kept, self.compacted)


def _read(file: Location, run_ids: Collection[str] | None = None) -> pa.Table:
    """Read a file; one that is not there has no rows.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return CLIENTS.empty_table()
    wanted = None if run_ids is None else [("run_id", "in", sorted(run_ids))]
    try:
        return read_parquet(pa.BufferReader(content), _expected, wanted)
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def _expected(found: pa.Schema) -> pa.Schema:
    """Return the columns of the table, if a file has no others.

    Raises:
        ValueError: it has others.
    """
    unknown = set(found.names) - set(CLIENTS.names)
    if unknown:
        raise ValueError(f"it has a column {min(unknown)!r}, which is not one of ours")
    return CLIENTS


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Put tables together; of a run that is in several, the first one's rows count."""
    found: list[pa.Table] = [CLIENTS.empty_table()]
    there: set[str] = set()
    for table in tables:
        fresh = set(table["run_id"].unique().to_pylist()) - there
        found.append(of_runs(table, fresh))
        there |= fresh
    return pa.concat_tables(found).sort_by([(name, "ascending") for name in ORDER])
