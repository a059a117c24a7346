"""Locations of results: folders of this machine, some of them copies of an object store."""

import errno
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from raysafl.core.text import format_bytes
from raysafl.storage.redaction import refuse_password

if TYPE_CHECKING:
    from raysafl.storage.mirror import Mirror

FULL = (errno.ENOSPC, errno.EDQUOT)
# The file that says to which object store a folder is copied.
NOTE = ".remote.json"
# Between two copies to the store while a sweep runs.
PUSH_SECONDS = 30.0


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
        from urllib.request import url2pathname

        return resolved(Path(url2pathname(urlsplit(text).path)))
    # Imported here, because results in a folder alone need no client of a store.
    from raysafl.storage.mirror import opened

    return opened(text)


@contextmanager
def pushed(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Copy a folder's results to its object store, if it has one, in the block and after it.

    They are copied every 30 seconds, and once more at the end of the block. If another
    process writes to the folder, that one copies them.

    Args:
        path: a sweep's folder.
        say: is told once if the store cannot be written to in the block.

    Raises:
        StorageError: they could not be copied at the end of the block, which raised nothing.
    """
    mirror = None
    if (path / NOTE).is_file():
        # Imported here, because results in a folder alone need no client of a store.
        from raysafl.storage.locks import is_held
        from raysafl.storage.mirror import Mirror

        mirror = None if is_held(path / ".lock") else Mirror.of(path)
    with _keep_pushing(mirror, say) if mirror else nullcontext():
        yield


@contextmanager
def _keep_pushing(mirror: "Mirror", say: Callable[[str], None]) -> Iterator[None]:
    is_over = threading.Event()
    errors: list[Exception] = []
    is_done = False

    def push_again_and_again() -> None:
        while not is_over.wait(PUSH_SECONDS):
            try:
                mirror.push()
            except (StorageError, OSError) as error:
                if not errors:
                    say(
                        f"Results are in {mirror.path} and not copied: {error}. The sweep "
                        "goes on, and the copy is tried again and again"
                    )
                errors.append(error)

    pushing = threading.Thread(target=push_again_and_again, daemon=True)
    pushing.start()
    try:
        yield
        is_done = True
    finally:
        is_over.set()
        pushing.join()
        try:
            mirror.push()
        except (StorageError, OSError) as error:
            # An error of the block matters more, and the folder has all results.
            if is_done:
                raise StorageError(
                    f"the results are complete in {mirror.path}, but not copied: {error}. "
                    "The same command copies them"
                ) from error


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
