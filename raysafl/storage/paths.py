"""Paths of results: which folder a location names, and its single files.

A folder of this machine may be a copy of an object store. Its files are written as a whole, or
by whole lines. Lines and files that are sealed say by a SHA-256 whether they are whole: a sealed
object is a JSON object whose first field, `sha256`, is the digest of the object without that
field. The manifest is one, the ledger consists of lines that are, and the file of a checkpoint
begins with one.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from raysafl.core.text import format_bytes
from raysafl.storage.redaction import refuse_password

FULL = (errno.ENOSPC, errno.EDQUOT)
# The file that says to which object store a folder is copied.
NOTE = ".remote.json"
# So many bytes at the end of a file are read at a time to find its last line.
TAIL = 65_536
SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')


class StorageError(Exception):
    """Results cannot be written or read: a full disk, a missing bucket, a lost network.

    It is no ValueError, which says that a file which could be read is damaged.
    """


class SweepBusyError(RuntimeError):
    """Another process is writing into this sweep's folder."""


def parse_location(where: str | Path) -> Path:
    """Return the folder that a path, a `file://` URI or an object store's URI names.

    For `s3://bucket/folder` that is `results/s3/bucket/folder` below the current folder,
    after what is newer in the store was copied there (`raysafl.storage.mirror`).

    Example:
        >>> parse_location("/tmp/../tmp/results").name
        'results'

    Raises:
        ValueError: the URI holds a password.
        StorageError: the URI is malformed, or names a kind of store that pyarrow does
            not know; the store cannot be used; or the results have changed both in the
            store and in the local folder.
    """
    text = refuse_password(str(where))
    if isinstance(where, Path) and re.match(r"(s3|gs|abfs|file):/", text):
        raise StorageError(
            f"'{text}' was made a Path, which spoils a URI: give it as text"
        )
    if isinstance(where, Path) or "://" not in text:
        return resolved(Path(text))
    if text.startswith("file://"):
        return resolved(Path(unquote(urlsplit(text).path)))
    # Imported here, because results in a folder alone need no client of a store.
    from raysafl.storage.mirror import opened

    return opened(text)


def pushed(path: Path, say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Copy a folder's results to its object store, if it has one, in the block and after it.

    If another process writes to the folder, that one copies them.

    Args:
        path: a sweep's folder.
        say: is told once if the store cannot be written to in the block.

    Raises:
        StorageError: they could not be copied at the end of the block, which raised nothing.
    """
    if (path / NOTE).is_file() and not is_held(path / ".lock"):
        from raysafl.storage.mirror import Mirror

        if mirror := Mirror.of(path):
            return mirror.pushed(say)
    return nullcontext()


def resolved(path: Path) -> Path:
    """Return a path without links.

    Raises:
        StorageError: a link leads back to itself.
    """
    try:
        return path.resolve()
    # Python 3.13 raises neither, and such a link then counts as a missing file.
    except (RuntimeError, OSError) as error:
        raise StorageError(
            f"{path} cannot be used: {error}. Remove the link, or give another folder"
        ) from error


@contextmanager
def explain_full_disk(folder: Path, needed: int | None = None) -> Iterator[None]:
    """Turn "no space left on device" into a StorageError that says what to do.

    Args:
        folder: the folder that is written to.
        needed: how many bytes were to be written, if it is known.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        where = folder.absolute()
        usage = shutil.disk_usage(
            next(p for p in (where, *where.parents) if p.exists())
        )
        wanted = (
            f", {format_bytes(needed)} were to be written" if needed is not None else ""
        )
        raise StorageError(
            f"the disk of {error.filename or folder} is full: {format_bytes(usage.free)} of "
            f"{format_bytes(usage.total)} are free{wanted}. Make room there"
        ) from error


@contextmanager
def _written(path: Path, size: int) -> Iterator[None]:
    """Turn an error of the block, which writes a file, into a StorageError."""
    with explain_full_disk(path.parent, size):
        try:
            yield
        except OSError as error:
            if error.errno in FULL:
                raise
            raise StorageError(f"cannot write {path}: {error.strerror}") from error


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
    with _written(path, len(content)):
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
        except OSError:
            # A disk that refuses to write may refuse to delete too.
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


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
    with _written(path, len(lines)):
        with path.open("a+b", 0) as file:
            _append(file, lines)
        if is_new:
            _sync(path.parent)


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


def seal(body: bytes) -> bytes:
    """Return the text of a JSON object, which is not empty, with its seal.

    Example:
        >>> unsealed(seal(b'{"run_id": "a"}'))
        b'{"run_id": "a"}'
    """
    return b'{"sha256": "%s", ' % sha256_of(body).encode() + body[1:]


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Return fields as a sealed line, without the end of the line."""
    return seal(json.dumps(fields).encode())


def unsealed(content: bytes) -> bytes:
    """Return the text of a sealed JSON object, without its seal.

    Raises:
        ValueError: the content is not as it was written.
    """
    found = SEAL.match(content)
    if found is None:
        raise ValueError("it begins with no SHA-256")
    body = b"{" + content[found.end() :]
    if sha256_of(body) != found[1].decode():
        raise ValueError("its SHA-256 does not fit its content")
    return body


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of some bytes, as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def is_held(file: Path) -> bool:
    """Whether a living process has the lock that is this file, which the system locks for it.

    On storage without flock, filelock writes a file that names the process, and deletes it; of
    a process that is killed, the file stays until the next one takes the lock.
    """
    try:
        # The folder may be somebody else's, so the file is opened for reading alone.
        with file.open("rb") as probe:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        # Where there is no flock, the lock is a file that names its holder while it is held.
        return bool(file.read_bytes())
    return False
