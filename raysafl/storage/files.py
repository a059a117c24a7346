"""Reading and writing of single files: atomic writes, and reads that notice damage."""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysafl.storage.paths import FULL, StorageError, explain_full_disk

# So many bytes at the end of a file are read at a time to find its last line.
TAIL = 65_536


def atomic_write(path: Path, content: bytes, durable: bool = False) -> None:
    """Replace a file as a whole: a reader sees the old content or the new one.

    Args:
        path: the file; its folder is made if it is not there.
        content: its new content.
        durable: whether the file is on the disk when this returns, so that a power cut
            leaves it and all durable files that were written before.

    Raises:
        StorageError: the disk is full or refuses.
    """
    # The name starts with a dot so that readers of the folder skip it, and holds the
    # process's id so that two writers do not disturb each other.
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with explain_full_disk(path.parent, len(content)):
        try:
            new = [own.parent for own in path.parents if not own.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            if durable:
                _sync(part)
            part.replace(path)
            if durable:
                for folder in (path.parent, *new):
                    _sync(folder)
        except OSError as error:
            # A disk that refuses to write may refuse to delete too.
            with suppress(OSError):
                part.unlink(missing_ok=True)
            if error.errno in FULL:
                raise
            raise StorageError(f"cannot write {path}: {error.strerror}") from error


def delete(path: Path) -> None:
    """Delete a file, if it is there.

    Raises:
        StorageError: the disk refuses.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot delete {path}: {error.strerror}") from error


def durable_append(path: Path, lines: bytes) -> None:
    """Append whole lines to a file. They are on the disk when this returns.

    What a crash has left of a line at the end of the file is overwritten.

    Args:
        path: the file, whose folder is there.
        lines: the lines, each with its end.

    Raises:
        StorageError: the disk is full or refuses; the file then ends as before.
    """
    is_new = not path.exists()
    with explain_full_disk(path.parent, len(lines)):
        try:
            with path.open("a+b", 0) as file:
                _append(file, lines)
            if is_new:
                _sync(path.parent)
        except OSError as error:
            if error.errno in FULL:
                raise
            raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _append(file: FileIO, lines: bytes) -> None:
    end = _end_of_last_line(file)
    try:
        file.truncate(end)
        left = memoryview(lines)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            file.truncate(end)
        raise


def _end_of_last_line(file: FileIO) -> int:
    """Return how many bytes of a file are whole lines."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - TAIL)
        file.seek(begin)
        if (place := file.read(end - begin).rfind(b"\n")) >= 0:
            return begin + place + 1
        end = begin
    return 0


def _sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some shared file systems cannot sync a folder.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


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
