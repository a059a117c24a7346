"""The rows of runs as Arrow tables: their schema, and reading many small files.

Every table of rows has the columns of `ROUNDS`. After them it may have further columns
(`raysafl.core.record`), which are those of the runs in it.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysafl.core.record import COLUMNS, FURTHER_NAME, Column, Summary
from raysafl.storage.files import read_parquet
from raysafl.storage.paths import Location

RUN_ID = Column(
    "string", "first 12 digits of the SHA-256 of the run's JSON", Summary.KEY
)
# Of the files in rounds/, in this order.
ROUND_COLUMNS = {"run_id": RUN_ID, **COLUMNS}
ARROW_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "list of bool": pa.list_(pa.bool_()),
    "list of lists of int32": pa.list_(pa.list_(pa.int32())),
    "list of float64": pa.list_(pa.float64()),
}
ROUNDS = pa.schema([(name, ARROW_TYPES[c.type]) for name, c in ROUND_COLUMNS.items()])
# Files whose content is in memory at the same time.
FILES_AT_ONCE = 256
# Requests at the same time, as an answer of an object store takes long.
THREADS = 16


def table_of(run_id: str, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows of a run as a table.

    Args:
        run_id: the run.
        rows: for each row the fields of `Record`; one that is missing is empty.
    """
    columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
    fields = list(ROUNDS)
    metrics = [row.get("metrics") or {} for row in rows]
    for name in dict.fromkeys(name for own in metrics for name in own):
        columns[name] = [own.get(name) for own in metrics]
        is_list = any(isinstance(value, list) for value in columns[name])
        kind = ARROW_TYPES["list of float64" if is_list else "float64"]
        fields.append(pa.field(name, kind))
    return pa.table(
        {"run_id": [run_id] * len(rows), **columns}, schema_of(pa.schema(fields))
    )


def schema_of(found: pa.Schema) -> pa.Schema:
    """Return the columns that a table of rows has: `ROUNDS`, and the further ones.

    Args:
        found: the columns of a file or of a table of rows. Further ones keep their
            order.

    Raises:
        ValueError: it lacks a column of `ROUNDS`, or has a column that rows cannot
            have, or one of a wrong type.
    """
    if missing := set(ROUNDS.names).difference(found.names):
        raise ValueError(f"it lacks the column {min(missing)!r}")
    further = []
    for field in found:
        if field.name in ROUNDS.names:
            continue
        if not FURTHER_NAME.fullmatch(field.name):
            raise ValueError(
                f"it has a column {field.name!r}, which is not one of ours"
            )
        is_list = pa.types.is_list(field.type)
        inner = field.type.value_type if is_list else field.type
        if inner != pa.float64():
            raise ValueError(f"its column {field.name!r} has the type {field.type}")
        # Files name the elements of a list in different ways.
        own = ARROW_TYPES["list of float64" if is_list else "float64"]
        further.append(pa.field(field.name, own))
    return pa.schema([*ROUNDS, *further])


def scalar_names(schema: pa.Schema) -> list[str]:
    """Return the names of the further columns that hold one number a row."""
    further = schema.names[len(ROUNDS) :]
    return [name for name in further if schema.field(name).type == pa.float64()]


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Put rows together; a column that some tables lack is empty in their rows.

    Raises:
        ValueError: a further column is a number in one table and a list in another.
    """
    try:
        return pa.concat_tables(
            [ROUNDS.empty_table(), *tables], promote_options="default"
        )
    except pa.ArrowException as error:
        raise ValueError(
            "results of runs cannot be put together, as a metric is a number in some and "
            f"a list in others: {' '.join(str(error).split())}; give one of the metrics "
            "another name, and delete the results of its runs"
        ) from error


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a schema; those that are missing are empty."""
    columns = [
        table[field.name]
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def run_of(part: Location) -> str:
    """Return the run id in the name of a part, `<run_id>-<first round>.parquet`."""
    return part.stem.rpartition("-")[0]


def read_files(files: list[Location]) -> list[tuple[Location, bytes]]:
    """Read many files at the same time.

    A file that was deleted in the meantime is left out: a run that goes on after a
    crash deletes the rows that it is about to compute again.
    """

    def content_of(file: Location) -> bytes | None:
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(THREADS) as pool:
        contents = list(pool.map(content_of, files))
    pairs = zip(files, contents, strict=True)
    return [(file, content) for file, content in pairs if content is not None]


def read_parts(parts: list[Location]) -> tuple[pa.Table, dict[Location, str]]:
    """Read the rows in some parts.

    Returns:
        The rows of the parts that can be read, and the parts that are damaged, each
        with the reason. Those are named in warnings.
    """
    tables: list[pa.Table] = []
    damaged: dict[Location, str] = {}
    for first in range(0, len(parts), FILES_AT_ONCE):
        some: list[pa.Table] = []
        for part, content in read_files(parts[first : first + FILES_AT_ONCE]):
            try:
                some.append(_read_part(part, content))
            except ValueError as error:
                warnings.warn(
                    f"{part} cannot be read and is left out: {error}", stacklevel=4
                )
                damaged[part] = str(error)

        # A table costs 18 KB even if it has few rows, hence one table for many parts.
        tables.append(joined(some).combine_chunks())
    return joined(tables), damaged


def schemas_of(parts: list[Location]) -> list[pa.Schema]:
    """Return the different columns that some parts have; damaged parts are left out."""
    found: list[pa.Schema] = []
    for first in range(0, len(parts), FILES_AT_ONCE):
        for _, content in read_files(parts[first : first + FILES_AT_ONCE]):
            try:
                schema = schema_of(pq.read_schema(pa.BufferReader(content)))
            except (pa.ArrowException, OSError, ValueError):
                # `read_parts` names the file.
                continue
            if schema not in found:
                found.append(schema)
    return found


def read_rows(
    source: BinaryIO | pa.NativeFile, run_ids: Iterable[str] | None = None
) -> pa.Table:
    """Read and check the rows in a Parquet file.

    Args:
        source: the opened file.
        run_ids: read the rows of these runs only; None for all rows.

    Raises:
        ValueError: the file is damaged.
    """
    wanted = None if run_ids is None else [("run_id", "in", sorted(run_ids))]
    table = read_parquet(source, schema_of, wanted)
    if any(table[name].null_count for name in ("run_id", "replicate", "seed", "round")):
        raise ValueError("it has rows without run, replicate, seed or round")
    for name in ("test_accuracy", "train_accuracy"):
        if np.isinf(table[name].to_numpy()).any():
            raise ValueError(f"its {name} is infinite")
    return table


def of_runs(table: pa.Table, run_ids: Iterable[str]) -> pa.Table:
    """Return the rows of some runs."""
    return table.filter(pc.is_in(table["run_id"], _names(run_ids)))


def without_runs(table: pa.Table, run_ids: Iterable[str]) -> pa.Table:
    """Return the rows of all other runs."""
    return table.filter(pc.invert(pc.is_in(table["run_id"], _names(run_ids))))


def _names(run_ids: Iterable[str]) -> pa.Array:
    return pa.array(list(run_ids), pa.string())


def sorted_rows(table: pa.Table) -> pa.Table:
    """Sort rows by run, replicate and round."""
    return table.sort_by(
        [(name, "ascending") for name in ("run_id", "replicate", "round")]
    )


def _read_part(part: Location, content: bytes) -> pa.Table:
    table = read_rows(pa.BufferReader(content))
    strangers = set(table["run_id"].to_pylist()) - {run_of(part)}
    if strangers:
        raise ValueError(f"it has rows of another run, {min(strangers)!r}")
    return table
