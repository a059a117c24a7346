"""Locations of results: folders of this machine or of an object store.

`Remote` has the methods of `Path` that results need, so that other modules treat both
alike. pyarrow's filesystems access the stores: S3, Google and Azure are in its wheel.
"""

import errno
import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple
from urllib.parse import urlsplit

from raysafl.core.text import format_bytes
from raysafl.storage.redaction import redacted, refuse_password

if TYPE_CHECKING:
    from pyarrow import fs

FULL = (errno.ENOSPC, errno.EDQUOT)
# Options of pyarrow's filesystems, which are added to a URI that does not set them.
DEFAULTS = {
    # A small file is then written by a single PUT request.
    "s3": "allow_delayed_open=true",
    # By default a lost server is tried for 15 minutes.
    "gs": "retry_limit_seconds=10",
}
# Pattern in an error message of pyarrow -> what the user may do.
HINTS = {
    r"NO_SUCH_BUCKET|bucket does not exist": "make the bucket first",
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|FORBIDDEN|[Cc]redential": "check the credentials "
    "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of this machine) and their rights",
    r"NETWORK_CONNECTION|(?i:curl)|connect": "check the network, and AWS_ENDPOINT_URL "
    "if it is not AWS",
}


class StorageError(Exception):
    """Results cannot be written or read: a full disk, a missing bucket, a lost network.

    It is no ValueError, which says that a file which could be read is damaged.
    """


class SweepBusyError(RuntimeError):
    """Another process is writing into this sweep's folder."""


class RemoteStat(NamedTuple):
    """What is known of an object without reading it; a part of `os.stat_result`."""

    st_size: int
    st_mtime: float


@dataclass(frozen=True, order=True)
class Remote:
    """A file or folder of an object store, with the methods of `Path` that are used.

    A file is replaced as a whole: readers see the old content or the new one, and a
    writer that is killed while it writes leaves the old content.

    Args:
        uri: the URI that the user gave, with its query.
        key: the path within the store, `bucket/folder/file`.

    Raises:
        StorageError: the store cannot be reached or refuses; the message says what to
            do.
    """

    uri: str = field(repr=False, compare=False)
    key: str

    def __str__(self) -> str:
        return f"{self.uri.partition(':')[0]}://{self.key}"

    def __truediv__(self, name: str) -> "Remote":
        return Remote(self.uri, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """The last part of the key, which is the file's name."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> "Remote":
        """The folder that holds it; the parent of a bucket is the bucket itself."""
        return Remote(self.uri, self.key.rpartition("/")[0] or self.key)

    @property
    def parents(self) -> list["Remote"]:
        """All folders that hold it, the nearest first and the bucket last."""
        return [Remote(self.uri, str(key)) for key in PurePosixPath(self.key).parents][
            :-1
        ]

    def resolve(self) -> "Remote":
        """Return the same location, as there are no links in an object store."""
        return self

    def relative_to(self, other: "PurePath | Remote") -> PurePosixPath:
        """Return the path that leads from another location to this one.

        Raises:
            ValueError: this location does not lie below the other one.
        """
        if not f"{self}/".startswith(f"{other}/"):
            raise ValueError(f"{self} does not lie below {other}")
        return PurePosixPath(str(self)).relative_to(str(other))

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: in an object store a folder exists as soon as a file in it does."""

    def is_file(self) -> bool:
        """Whether the store has an object with this key."""
        from pyarrow import fs

        with self._connected() as store:
            return bool(store.get_file_info(self.key).type == fs.FileType.File)

    def stat(self) -> RemoteStat:
        """Return the object's number of bytes and when it was written, as `Path.stat` does.

        Raises:
            FileNotFoundError: there is no such object.
        """
        from pyarrow import fs

        with self._connected() as store:
            info = store.get_file_info(self.key)
        if info.type != fs.FileType.File:
            raise FileNotFoundError(str(self))
        return RemoteStat(int(info.size), info.mtime_ns / 1e9)

    def open(self, mode: str = "rb") -> BinaryIO:
        """Open the object for reading; one request fetches its whole content."""
        assert mode == "rb"
        return io.BytesIO(self.read_bytes())

    def read_bytes(self) -> bytes:
        """Return the content of the object.

        Raises:
            FileNotFoundError: there is no such object.
        """
        with self._connected() as store, store.open_input_file(self.key) as source:
            return bytes(source.readall())

    def read_text(self) -> str:
        """Return the content of the object, decoded as UTF-8."""
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> None:
        """Create the object, or replace its content as a whole."""
        with self._connected() as store, store.open_output_stream(self.key) as sink:
            sink.write(content)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object.

        Raises:
            FileNotFoundError: there is no such object, unless `missing_ok`.
        """
        try:
            with self._connected() as store:
                store.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def glob(self, pattern: str) -> Iterator["Remote"]:
        """Yield the files below this folder whose path matches the pattern.

        Args:
            pattern: parts separated by `/`, one for each level of folders. A part may
                hold the wildcards of `fnmatch`.
        """
        from pyarrow import fs

        # Only folders that may match are listed: an object store lists a thousand files
        # a request, and a sweep may have many.
        first, _, rest = pattern.partition("/")
        if not re.search(r"[*?\[]", first):
            inside = self / first
            if rest:
                yield from inside.glob(rest)
            elif inside.is_file():
                yield inside
            return
        with self._connected() as store:
            found = store.get_file_info(fs.FileSelector(self.key, allow_not_found=True))
        for info in found:
            if fnmatchcase(info.base_name, first):
                if rest and info.type == fs.FileType.Directory:
                    yield from (self / info.base_name).glob(rest)
                elif not rest and info.type == fs.FileType.File:
                    yield self / info.base_name

    @contextmanager
    def _connected(self) -> "Iterator[fs.FileSystem]":
        from pyarrow import ArrowException

        try:
            yield _opened(self.uri)[0]
        except FileNotFoundError:
            raise
        except (OSError, ArrowException) as error:
            raise StorageError(f"{self}: {_reason_and_hint(error, self.uri)}") from None


Location = Path | Remote


def parse_location(where: str | Path | Remote) -> Location:
    """Return the folder that a path, a `file://` URI or an object store's URI names.

    Example:
        >>> parse_location("/tmp/../tmp/results").name
        'results'

    Raises:
        ValueError: the URI holds a password.
        StorageError: the URI is malformed, or names a kind of store that pyarrow does
            not know.
    """
    if isinstance(where, Remote):
        return where
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
    return Remote(text, _opened(text)[1].rstrip("/"))


def resolved(location: Location) -> Location:
    """Return a location without links.

    Raises:
        StorageError: a link leads back to itself.
    """
    try:
        return location.resolve()
    # Python 3.13 raises neither, and such a link then counts as a missing file.
    except (RuntimeError, OSError) as error:
        raise StorageError(
            f"{location} cannot be used: {error}. Remove the link, or give another folder"
        ) from error


def local_folder(location: Location) -> Path:
    """Return the folder of this machine for files that cannot lie in an object store.

    That is the location itself, or for `s3://bucket/folder` the folder
    `results/s3/bucket/folder` below the current one.
    """
    if isinstance(location, Remote):
        return Path("results", *str(location).replace(":", "").split("/"))
    return location


@lru_cache
def _opened(uri: str) -> "tuple[fs.FileSystem, str]":
    """Return the filesystem and the path in it; the cache keeps connections open."""
    # Imported here, because results in a folder of this machine need no client of a store.
    from pyarrow import ArrowException, fs

    scheme = uri.partition(":")[0]
    extra = DEFAULTS.get(scheme, "")
    given = urlsplit(uri).query
    if extra.partition("=")[0] not in given:
        uri = f"{uri}{'&' if given else '?'}{extra}"
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(uri)
    except (OSError, ArrowException) as error:
        raise StorageError(
            f"cannot use {uri} for results: {_reason_and_hint(error)}"
        ) from error
    return found


def _reason_and_hint(error: Exception) -> str:
    """Return an error of a store as one line without secrets, and a hint if any."""
    lines = redacted(str(error)).splitlines()
    text = lines[0] if lines else type(error).__name__
    hint = next(
        (hint for pattern, hint in HINTS.items() if re.search(pattern, text)), ""
    )
    return f"{text}; {hint}" if hint else text


@contextmanager
def explain_full_disk(folder: Location, needed: int | None = None) -> Iterator[None]:
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
        where = local_folder(folder).absolute()
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
