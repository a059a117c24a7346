"""files."""

import os

import pyarrow as pa
import pyarrow.parquet as pq

from raysafl.storage.paths import Place, Remote, full_disk_told


def atomic_write(path: Place, content: bytes) -> None:
    """Replace a file whole: a reader sees the old content or the new, never a part.

    Raises:
        StorageError: the disk is full, or the object store refuses.
    """
    if isinstance(path, Remote):
        path.write_bytes(content)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with full_disk_told(path.parent, len(content)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def write_parquet(table: pa.Table, path: Place) -> None:
    """Write a Parquet file atomically, with sums by which damage is noticed."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    atomic_write(path, sink.getvalue().to_pybytes())


def read_parquet(content: bytes, schema: pa.Schema | None = None) -> pa.Table:
    """The table in a Parquet file's bytes. Raises ValueError if they are damaged."""
    try:
        source = pa.BufferReader(content)
        table = pq.read_table(source, schema=schema, page_checksum_verification=True)
        table.validate(full=True)
        strange = set(pq.read_schema(pa.BufferReader(content)).names) - set(table.column_names)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error
    if strange:
        raise ValueError(f"it has a column {min(strange)!r}, which is not one of ours")
    return table
