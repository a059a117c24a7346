"""The compacted form of results: one file of rows, one of ledger entries, many runs.

`rounds/rounds.parquet` and `ledger/ledger.jsonl` lie in the same folders as the files
of single runs, so that `rounds/*.parquet` finds the rows in either form, or in a
mixture of both.

A run whose rows are in `rounds.parquet` is read from there, and parts that it has
besides are ignored. So a crash between writing this file and deleting the parts neither
loses nor doubles a row. A run must therefore be taken out of `rounds.parquet` before it
writes parts again.
"""

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from raysafl.core.component import explain
from raysafl.storage.files import atomic_write, write_parquet
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.manifest import RUN_ID
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.rows import ROUNDS, read_rows

# A row group is the least that is read to get the rows of one run.
ROWS_PER_GROUP = 65_536
# What reading a damaged line of the ledger may raise.
DAMAGED_LINE = (ValueError, RecursionError)
PARQUET = {
    "compression": "zstd",
    "compression_level": 19,
    "use_dictionary": ["run_id", "kind"],
    "column_encoding": dict.fromkeys(
        ["test_loss", "train_loss", "seconds"], "BYTE_STREAM_SPLIT"
    ),
    "write_statistics": [
        "run_id"
    ],  # by which groups without the wanted run are skipped
    "write_page_checksum": True,
    "store_schema": False,
}


@dataclass(frozen=True)
class Compacted:
    """The two files of a sweep's compacted runs. Each is missing if it would be empty.

    Args:
        rows_file: `rounds/rounds.parquet`, sorted by run, replicate and round.
        ledger_file: `ledger/ledger.jsonl`, one entry a line, with the field `run_id` in
            front.
        aside: where a `rounds.parquet` is kept that cannot be read any more.
    """

    rows_file: Location
    ledger_file: Location
    aside: Location

    def run_ids(self) -> set[str]:
        """Return the runs whose rows are in the file.

        Raises:
            ValueError: the file is damaged.
        """
        try:
            with self.rows_file.open("rb") as source:
                table = pq.read_table(source, columns=["run_id"])
        except FileNotFoundError:
            return set()
        except StorageError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{self.rows_file} cannot be read: {error}") from error
        return set(table["run_id"].unique().to_pylist())

    def rows(self, run_ids: Iterable[str] | None = None) -> pa.Table:
        """Return the rows of some runs, or (None) of all compacted runs.

        Raises:
            ValueError: the file is damaged.
        """
        try:
            with self.rows_file.open("rb") as source:
                return read_rows(source, run_ids)
        except FileNotFoundError:
            return ROUNDS.empty_table()
        except StorageError:
            raise
        except ValueError as error:
            raise ValueError(f"{self.rows_file} cannot be read: {error}") from error

    def readable_rows(self, run_ids: Iterable[str] | None = None) -> pa.Table:
        """Return the same rows; none, with a warning, if the file is damaged."""
        try:
            return self.rows(run_ids)
        except StorageError:
            raise
        except ValueError as error:
            warnings.warn(f"{error}; it is left out", stacklevel=3)
            return ROUNDS.empty_table()

    def write_rows(self, tables: Iterable[pa.Table]) -> None:
        """Replace the file of rows.

        Args:
            tables: the rows of one or several runs each, sorted. They are written one
                after the other, so not all of them are in memory at the same time.
        """
        sink = pa.BufferOutputStream()
        count = 0
        with pq.ParquetWriter(sink, ROUNDS, **PARQUET) as writer:
            waiting = ROUNDS.empty_table()
            for table in tables:
                waiting = pa.concat_tables([waiting, table])
                count += len(table)
                if len(waiting) >= ROWS_PER_GROUP:
                    writer.write_table(waiting.combine_chunks())
                    waiting = ROUNDS.empty_table()
            if len(waiting):
                writer.write_table(waiting.combine_chunks())

        if count:
            atomic_write(self.rows_file, sink.getvalue().to_pybytes())
        else:
            self.rows_file.unlink(missing_ok=True)

    def entries(self, run_id: str = "", strict: bool = False) -> dict[str, LedgerEntry]:
        """Return the ledger entry of a run, or of all compacted runs, by run id.

        Args:
            run_id: the run; empty for all runs.
            strict: whether a damaged line is an error. Otherwise it is named in a
                warning and left out.

        Raises:
            ValueError: a line is damaged, and `strict` is set.
        """
        entries: dict[str, LedgerEntry] = {}
        for number, line in enumerate(self._lines(), start=1):
            if run_id and f'"{run_id}"'.encode() not in line:
                # Most lines need not be parsed to find one run's.
                continue
            try:
                name, entry = _parsed_line(line)
            except DAMAGED_LINE as error:
                message = f"line {number} of {self.ledger_file} cannot be read"
                if strict:
                    raise ValueError(f"{message}: {_why(error)}") from error
                warnings.warn(f"{message} and is left out: {_why(error)}", stacklevel=3)
                continue
            if not run_id or name == run_id:
                entries[name] = entry
        return entries

    def write_entries(self, entries: Mapping[str, LedgerEntry]) -> None:
        """Replace the file of ledger entries."""
        lines = [
            json.dumps({"run_id": run_id, **entry.content()}) + "\n"
            for run_id, entry in sorted(entries.items())
        ]
        if lines:
            atomic_write(self.ledger_file, "".join(lines).encode())
        else:
            self.ledger_file.unlink(missing_ok=True)

    def remove_entries(self, run_ids: Iterable[str]) -> None:
        """Remove the ledger entries of some runs; all other lines stay as they are."""
        removed = set(run_ids)
        self._keep_lines(lambda line: _run_id_in(line) not in removed)

    def remove_damaged_lines(self) -> None:
        """Remove the lines that hold no ledger entry of a run."""
        self._keep_lines(lambda line: not _line_fault(line))

    def damaged_lines(self) -> dict[int, str]:
        """Return the numbers of the lines that hold no entry, from 1, and why."""
        numbered = enumerate(self._lines(), start=1)
        return {n: why for n, line in numbered if (why := _line_fault(line))}

    def _keep_lines(self, keep: Callable[[bytes], bool]) -> None:
        lines = self._lines()
        kept = [line for line in lines if keep(line)]
        if not kept:
            self.ledger_file.unlink(missing_ok=True)
        elif len(kept) < len(lines):
            atomic_write(self.ledger_file, b"\n".join(kept) + b"\n")

    def remove_rows(self, run_ids: Iterable[str]) -> None:
        """Remove the rows of some runs. A file that cannot be read is set aside."""
        if not self.rows_file.is_file():
            return
        try:
            table = self.rows()
        except StorageError:
            raise
        except ValueError:
            # Its runs have lost their rows in any case. A copy is kept: somebody may
            # know how to rescue some of them.
            atomic_write(self.aside, self.rows_file.read_bytes())
            self.rows_file.unlink()
            return
        removed = set(run_ids)
        if removed.isdisjoint(table["run_id"].unique().to_pylist()):
            return
        others = pc.invert(
            pc.is_in(table["run_id"], pa.array(sorted(removed), pa.string()))
        )
        self.write_rows([table.filter(others)])

    def move_to_part(self, run_id: str, before_round: int, part: Location) -> None:
        """Move a run's rows before a round into a part, and drop its other rows.

        Only runs that have ended are compacted, so a run is here only if it is run
        again although its results are there.

        Raises:
            ValueError: the file is damaged.
        """
        if not self.rows_file.is_file():
            return
        table = self.rows([run_id])
        if not len(table):
            return

        # The part is ignored until the rows are out of the compacted file, so a crash
        # in between changes nothing.
        before = table.filter(pc.less(table["round"], before_round))
        if len(before):
            write_parquet(before, part)
        self.remove_rows([run_id])

    def delete(self) -> None:
        """Delete both files, the ledger first: rows without an entry are unfinished."""
        self.ledger_file.unlink(missing_ok=True)
        self.rows_file.unlink(missing_ok=True)

    def _lines(self) -> list[bytes]:
        try:
            return self.ledger_file.read_bytes().splitlines()
        except FileNotFoundError:
            return []


def _line_fault(line: bytes) -> str:
    """Say why a line of `ledger.jsonl` is damaged; empty if it is not."""
    try:
        _parsed_line(line)
    except DAMAGED_LINE as error:
        return _why(error)
    return ""


def _why(error: Exception) -> str:
    return explain(error) if isinstance(error, ValidationError) else str(error)


def _run_id_in(line: bytes) -> str:
    """Return the run of a line of `ledger.jsonl`; empty if the line is damaged."""
    try:
        return _parsed_line(line)[0]
    except DAMAGED_LINE:
        return ""


def _parsed_line(line: bytes) -> tuple[str, LedgerEntry]:
    """Parse one line of `ledger.jsonl`. Raises ValueError if it is damaged."""
    fields = json.loads(line)
    run_id = fields.pop("run_id", None) if isinstance(fields, dict) else None
    if not isinstance(run_id, str) or not re.match(RUN_ID, run_id):
        raise ValueError("it has no valid run_id")
    return run_id, LedgerEntry.from_fields(fields)
