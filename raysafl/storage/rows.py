"""The two tables of results, `rounds/` and `clients/`: their columns, and one file of them.

Rows belong to cells. Every table of rounds has the columns of `ROUNDS`. After them it may
have further columns (`raysafl.core.record`), which are those of the cells in it. The table
of clients says how well models serve each single client; only cells with `eval_clients`
have rows there.

Who reads results as those of runs gets `run_id` and `replicate` in the place of `cell`
(`of_owners`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysafl.core.record import (
    COLUMNS,
    ColumnDescription,
    Record,
    Summary,
)

CELL = ColumnDescription(
    "string", "id of the cell: a hash of the configuration and of the seed", Summary.KEY
)
# Of the files in rounds/, in this order.
ROUND_COLUMNS = {"cell": CELL, **COLUMNS}
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
CLIENT_COLUMNS: Mapping[str, ColumnDescription] = {
    "cell": CELL,
    "seed": COLUMNS["seed"],
    "round": ColumnDescription("int32", "number of the round, from 0", Summary.KEY),
    "client": ColumnDescription("int32", "number of the client, from 0", Summary.KEY),
    "participations": ColumnDescription(
        "int32",
        "rounds up to this one in which the client has trained (not those in which it was in "
        "the cohort and did not train)",
    ),
    "samples": ColumnDescription("int32", "training samples that the client holds"),
    "test_samples": ColumnDescription(
        "int32", "test samples by which the client is judged"
    ),
    "quality": ColumnDescription(
        "float64",
        "the metric of the run's objective, usually the accuracy, of the global model "
        "after the round on the client's test samples",
        Summary.MEAN,
    ),
    "loss": ColumnDescription(
        "float64",
        "mean loss of the global model after the round on the client's test samples",
        Summary.MEAN,
    ),
    "personal_quality": ColumnDescription(
        "float64",
        "the same metric of the client's personal model; empty if the run has none",
        Summary.MEAN,
    ),
}
CLIENTS = pa.schema(
    [(name, ARROW_TYPES[own.type]) for name, own in CLIENT_COLUMNS.items()]
)
# The columns that the rows of each table have at least, by the name of its folder.
SCHEMAS = {"rounds": ROUNDS, "clients": CLIENTS}
# The order of the rows in each table, by the name of its folder.
ORDER = {
    "rounds": ("cell", "round"),
    "clients": ("cell", "round", "client"),
}
# A row group is the least that is read to get the rows of one cell.
ROWS_PER_GROUP = 65_536
# Columns of numbers that hardly repeat. Further columns are stored like these.
SPLIT = ("test_loss", "train_loss", "seconds")
# The ids of a cohort ascend, so their differences have few bits.
IDS = "cohorts.list.element.list.element"
PARQUET = {
    "compression": "zstd",
    # Level 19 makes the files 6 % smaller and takes 14 times as long.
    "compression_level": 9,
    # By this, groups without the wanted cell are skipped.
    "write_statistics": ["cell"],
    "write_page_checksum": True,
    "store_schema": False,
}


def table_of(cells: Sequence[str], records: Sequence[Record]) -> pa.Table:
    """Return records as rows.

    Args:
        cells: the cell of each record.
        records: the records.
    """
    columns = {name: [getattr(r, name) for r in records] for name in COLUMNS}
    fields = list(ROUNDS)
    for name in dict.fromkeys(name for own in records for name in own.metrics):
        columns[name] = [own.metrics.get(name) for own in records]
        is_list = any(isinstance(value, list) for value in columns[name])
        kind = ARROW_TYPES["list of float64" if is_list else "float64"]
        fields.append(pa.field(name, kind))
    return pa.table({"cell": list(cells), **columns}, schema_of(pa.schema(fields)))


def schema_of(found: pa.Schema) -> pa.Schema:
    """Return the columns that a table of rows has: `ROUNDS`, and the further ones.

    Args:
        found: the columns of a file or of a table of rows. Further ones keep their
            order.
    """
    # Files name the elements of a list in different ways.
    kinds = {True: ARROW_TYPES["list of float64"], False: ARROW_TYPES["float64"]}
    further = [
        pa.field(field.name, kinds[pa.types.is_list(field.type)])
        for field in found
        if field.name not in ROUNDS.names
    ]
    return pa.schema([*ROUNDS, *further])


def scalar_names(schema: pa.Schema) -> list[str]:
    """Return the names of the further columns that hold one number a row."""
    further = [field for field in schema if field.name not in ROUND_COLUMNS]
    return [field.name for field in further if field.type == pa.float64()]


def joined(tables: Iterable[pa.Table], folder: str = "rounds") -> pa.Table:
    """Put rows together; a column that some tables lack is empty in their rows.

    Args:
        tables: the rows.
        folder: the name of the folder of their table.
    """
    empty = SCHEMAS[folder].empty_table()
    return pa.concat_tables([empty, *tables], promote_options="default")


def encoded(table: pa.Table, folder: str = "rounds") -> bytes:
    """Return the content of a Parquet file with some rows; nothing if there are none.

    Args:
        table: the rows, in any order; the file has them sorted.
        folder: the name of the folder of their table.
    """
    sink = pa.BufferOutputStream()
    order = pc.sort_indices(table, [(name, "ascending") for name in ORDER[folder]])
    with pq.ParquetWriter(
        sink, table.schema, **_parquet_options(table.schema)
    ) as writer:
        # All sorted rows would be in memory twice.
        for first in range(0, len(table), ROWS_PER_GROUP):
            group = table.take(order[first : first + ROWS_PER_GROUP])
            writer.write_table(group.combine_chunks())
    return sink.getvalue().to_pybytes() if len(table) else b""


def _parquet_options(schema: pa.Schema) -> dict[str, Any]:
    """Return how a file with these columns is written."""
    if IDS.partition(".")[0] not in schema.names:
        return PARQUET
    split = dict.fromkeys([*SPLIT, *scalar_names(schema)], "BYTE_STREAM_SPLIT")
    encoding = {**split, IDS: "DELTA_BINARY_PACKED"}
    return {
        **PARQUET,
        "use_dictionary": ["cell", "kind"],
        "column_encoding": encoding,
    }


def read_rows(
    folder: str, content: bytes, cells: Iterable[str] | None = None
) -> pa.Table:
    """Read the rows in a Parquet file.

    Args:
        folder: the name of the folder that holds the file, which is that of its table.
        content: the content of the file.
        cells: read the rows of these cells only; None for all rows.

    Raises:
        ValueError: the file is damaged.
    """
    wanted = None if cells is None else [("cell", "in", sorted(cells))]
    expected = schema_of if folder == "rounds" else lambda _: CLIENTS
    return read_parquet(content, expected, wanted)


def read_parquet(
    content: bytes,
    expected: Callable[[pa.Schema], pa.Schema] = lambda found: found,
    filters: list[tuple[str, str, list[str]]] | None = None,
) -> pa.Table:
    """Read the content of a Parquet file as a table.

    Args:
        content: the content.
        expected: returns the columns that the table is to have, from those that the
            file has; a missing one is filled with nulls.
        filters: conditions on the rows to read, as `pyarrow.parquet.read_table` takes
            them.

    Raises:
        ValueError: the content is damaged.
        MemoryError: there is too little memory for it.
    """
    source = pa.BufferReader(content)
    try:
        schema = expected(pq.read_schema(source))
        source.seek(0)
        return pq.read_table(
            source, schema=schema, filters=filters, page_checksum_verification=True
        )
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def of_cells(table: pa.Table, cells: Iterable[str]) -> pa.Table:
    """Return the rows of some cells."""
    return table.filter(pc.is_in(table["cell"], pa.array(list(cells), pa.string())))


def without_cells(table: pa.Table, cells: Iterable[str]) -> pa.Table:
    """Return the rows of all other cells."""
    names = pa.array(list(cells), pa.string())
    return table.filter(pc.invert(pc.is_in(table["cell"], names)))


def of_owners(table: pa.Table, owners: Mapping[str, Sequence[str]]) -> pa.Table:
    """Return rows of cells as rows of runs: `run_id` and `replicate` in place of `cell`.

    Args:
        table: the rows.
        owners: the cells of each run, in the order of its replicates. Rows of other cells
            are left out; those of a cell that several runs have belong to each of them.
    """
    owners_of: dict[str, list[tuple[str, int]]] = {}
    for run_id, cells in owners.items():
        for replicate, cell in enumerate(cells):
            owners_of.setdefault(cell, []).append((run_id, replicate))
    parts: list[pa.Table] = []
    # In each turn a cell has one owner.
    for turn in range(max(map(len, owners_of.values()), default=1)):
        chosen = {c: own[turn] for c, own in owners_of.items() if turn < len(own)}
        place = pc.index_in(table["cell"], pa.array(list(chosen), pa.string()))
        there = pc.is_valid(place)
        rows = table.filter(there).drop_columns("cell")
        place = place.filter(there)
        names, numbers = zip(*chosen.values(), strict=True) if chosen else ((), ())
        rows = rows.add_column(
            0, "replicate", pa.array(numbers, pa.int32()).take(place)
        )
        rows = rows.add_column(0, "run_id", pa.array(names, pa.string()).take(place))
        parts.append(rows)
    return pa.concat_tables(parts)


def of_runs(table: pa.Table, run_ids: Iterable[str]) -> pa.Table:
    """Return the rows of some runs, of a table that has `run_id`."""
    return table.filter(pc.is_in(table["run_id"], pa.array(list(run_ids), pa.string())))


def sorted_rows(table: pa.Table, folder: str = "rounds") -> pa.Table:
    """Sort rows of runs by run, replicate, round and, in the table of clients, client."""
    last = ORDER[folder][1:]
    names = ("run_id", "replicate", *last)
    return table.sort_by([(name, "ascending") for name in names])
