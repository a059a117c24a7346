"""A bundle: one file of rows and one of ledger entries that hold many ended runs.

`rounds/rounds.parquet` and `ledger/ledger.jsonl` are the bundle that `raysafl compact`
makes; `rounds/pack-<id>.<k>.parquet` and `ledger/pack-<id>.<k>.jsonl` are those that
trials write. They lie in the same folders as the files of single runs, so that
`rounds/*.parquet` finds the rows in either form, or in a mixture of both.

The rows are written first and the entries after them. So an entry says that the rows of
its run are there as well, and rows without an entry, which a crash may leave, count
nowhere.
"""

import json
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from raysafl.core.component import explain
from raysafl.storage.files import atomic_write
from raysafl.storage.ledger import LedgerEntry, parsed_json
from raysafl.storage.manifest import RUN_ID
from raysafl.storage.paths import Location
from raysafl.storage.rows import (
    ROUNDS,
    conformed,
    read_rows,
    scalar_names,
    schema_of,
    without_runs,
)

T = TypeVar("T")
# A row group is the least that is read to get the rows of one run.
ROWS_PER_GROUP = 65_536
# What reading a damaged line of the ledger may raise.
DAMAGED_LINE = (ValueError, RecursionError)
# How a line of the ledger begins; most lines need not be parsed to find one run's.
FRONT = re.compile(rb'\{"run_id": "([\w-]+)"')
# Columns of numbers that hardly repeat. Further columns are stored like these.
SPLIT = ("test_loss", "train_loss", "seconds")
# The ids of a cohort ascend, so their differences have few bits.
IDS = "cohorts.list.element.list.element"
PARQUET = {
    "compression": "zstd",
    # Level 19 makes the files 6 % smaller and takes 14 times as long.
    "compression_level": 9,
    "use_dictionary": ["run_id", "kind"],
    "write_statistics": [
        "run_id"
    ],  # by which groups without the wanted run are skipped
    "write_page_checksum": True,
    "store_schema": False,
}


@dataclass(frozen=True)
class Bundle:
    """The two files of a bundle. Each is missing if it would be empty.

    Args:
        rows_file: the rows, sorted by run, replicate and round.
        ledger_file: one entry a line, with the field `run_id` in front.
        aside: where a `rows_file` is kept that cannot be read any more.
    """

    rows_file: Location
    ledger_file: Location
    aside: Location

    def run_ids(self) -> set[str]:
        """Return the runs that have rows in the file.

        Raises:
            ValueError: the file is damaged.
        """
        read = partial(pq.read_table, columns=["run_id"])
        return set(self._read(read, ROUNDS.empty_table())["run_id"].to_pylist())

    def rows(self, run_ids: Collection[str] | None = None) -> pa.Table:
        """Return the rows of some runs, or (None) all rows in the file.

        Raises:
            ValueError: the file is damaged.
        """
        return self._read(partial(read_rows, run_ids=run_ids), ROUNDS.empty_table())

    def schema(self) -> pa.Schema:
        """Return the columns of the file of rows; those of every run if there is none.

        Raises:
            ValueError: the file is damaged.
        """
        return self._read(lambda source: schema_of(pq.read_schema(source)), ROUNDS)

    def _read(self, read: Callable[[Any], T], empty: T) -> T:
        """Return what is read from the opened file of rows; `empty` if there is none."""
        try:
            source = self.rows_file.open("rb")
        except FileNotFoundError:
            return empty
        with source:
            try:
                return read(source)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise ValueError(f"{self.rows_file} cannot be read: {error}") from error

    def write_rows(self, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
        """Replace the file of rows.

        Args:
            tables: the rows of one or several runs each, sorted. They are written one
                after the other, so not all of them are in memory at the same time.
            schema: the columns of all of them together.
        """
        sink = pa.BufferOutputStream()
        count = 0
        with pq.ParquetWriter(sink, schema, **_options(schema)) as writer:
            waiting = schema.empty_table()
            for table in tables:
                waiting = pa.concat_tables([waiting, conformed(table, schema)])
                count += len(table)
                if len(waiting) >= ROWS_PER_GROUP:
                    writer.write_table(waiting.combine_chunks(), ROWS_PER_GROUP)
                    waiting = schema.empty_table()
            if len(waiting):
                writer.write_table(waiting.combine_chunks())

        if count:
            atomic_write(self.rows_file, sink.getvalue().to_pybytes())
        else:
            self.rows_file.unlink(missing_ok=True)

    def entries(
        self, run_ids: Collection[str] | None = None, strict: bool = False
    ) -> dict[str, LedgerEntry]:
        """Return the ledger entries of some runs, or (None) of all, by run id.

        Args:
            run_ids: the runs.
            strict: whether a damaged line is an error. Otherwise it is named in a
                warning and left out.

        Raises:
            ValueError: a line is damaged, and `strict` is set.
        """
        entries: dict[str, LedgerEntry] = {}
        for number, run_id, entry in self._parsed(run_ids):
            if isinstance(entry, LedgerEntry):
                entries[run_id] = entry
                continue
            message = f"line {number} of {self.ledger_file} cannot be read"
            if strict:
                raise ValueError(f"{message}: {entry}")
            warnings.warn(f"{message} and is left out: {entry}", stacklevel=3)
        return entries

    def ended(self, run_ids: Collection[str] | None = None) -> set[str]:
        """Return which of some runs, or (None) of all, have an entry."""
        found = self._parsed(run_ids)
        return {i for _, i, entry in found if isinstance(entry, LedgerEntry)}

    def damaged_lines(self) -> dict[int, str]:
        """Return the numbers of the lines that hold no entry, from 1, and why."""
        return {n: why for n, _, why in self._parsed() if isinstance(why, str)}

    def write_entries(self, entries: Mapping[str, LedgerEntry]) -> None:
        """Replace the file of ledger entries."""
        lines = [
            json.dumps({"run_id": run_id, **entry.content()}).encode()
            for run_id, entry in sorted(entries.items())
        ]
        self._write_lines(lines)

    def remove_entries(self, run_ids: Collection[str]) -> None:
        """Remove the entries of some runs; all other lines stay as they are."""
        if run_ids:
            self._keep_lines(lambda line: _run_id_in(line) not in run_ids)

    def remove_damaged_lines(self) -> None:
        """Remove the lines that hold no ledger entry of a run."""
        self._keep_lines(lambda line: bool(_run_id_in(line)))

    def remove_rows(self, run_ids: Collection[str]) -> None:
        """Remove the rows of some runs, and those of runs without an entry.

        The latter stay if a line of the ledger is damaged, as it may be their entry.

        Raises:
            ValueError: the file of rows is damaged.
        """
        there = self.run_ids()
        lines = list(self._parsed())
        removed = there.intersection(run_ids)
        if all(isinstance(entry, LedgerEntry) for _, _, entry in lines):
            removed |= there - {run_id for _, run_id, _ in lines}
        if removed:
            left = without_runs(self.rows(), removed)
            self.write_rows([left], left.schema)

    def set_aside(self) -> None:
        """Move a file of rows that cannot be read to where it is not read any more.

        Its runs have lost their rows in any case, but somebody may know how to rescue
        some of them.
        """
        atomic_write(self.aside, self.rows_file.read_bytes())
        self.rows_file.unlink()

    def delete(self) -> None:
        """Delete both files, the ledger first: rows without an entry count nowhere."""
        self.ledger_file.unlink(missing_ok=True)
        self.rows_file.unlink(missing_ok=True)

    def _parsed(
        self, run_ids: Collection[str] | None = None
    ) -> Iterator[tuple[int, str, LedgerEntry | str]]:
        """Yield the lines: number, run, and entry, or why the line is damaged."""
        for number, line in enumerate(self._lines(), start=1):
            front = FRONT.match(line)
            if run_ids is not None and front and front[1].decode() not in run_ids:
                continue
            try:
                run_id, entry = _parsed_line(line)
            except DAMAGED_LINE as error:
                yield number, "", _why(error)
                continue
            if run_ids is None or run_id in run_ids:
                yield number, run_id, entry

    def _keep_lines(self, keep: Callable[[bytes], bool]) -> None:
        lines = self._lines()
        kept = [line for line in lines if keep(line)]
        if len(kept) < len(lines):
            self._write_lines(kept)

    def _write_lines(self, lines: list[bytes]) -> None:
        if lines:
            atomic_write(self.ledger_file, b"\n".join(lines) + b"\n")
        else:
            self.ledger_file.unlink(missing_ok=True)

    def _lines(self) -> list[bytes]:
        try:
            return self.ledger_file.read_bytes().splitlines()
        except FileNotFoundError:
            return []


def _options(schema: pa.Schema) -> dict[str, Any]:
    """Return how a file of rows with these columns is written."""
    split = [*SPLIT, *scalar_names(schema)]
    encoding = dict.fromkeys(split, "BYTE_STREAM_SPLIT")
    return {**PARQUET, "column_encoding": {**encoding, IDS: "DELTA_BINARY_PACKED"}}


def _why(error: Exception) -> str:
    return explain(error) if isinstance(error, ValidationError) else str(error)


def _run_id_in(line: bytes) -> str:
    """Return the run of a line of the ledger; empty if the line is damaged."""
    try:
        return _parsed_line(line)[0]
    except DAMAGED_LINE:
        return ""


def _parsed_line(line: bytes) -> tuple[str, LedgerEntry]:
    """Parse one line of the ledger. Raises ValueError if it is damaged."""
    fields = parsed_json(line)
    run_id = fields.pop("run_id", None) if isinstance(fields, dict) else None
    if not isinstance(run_id, str) or not re.match(RUN_ID, run_id):
        raise ValueError("it has no valid run_id")
    return run_id, LedgerEntry.model_validate(fields)
