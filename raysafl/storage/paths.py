"""Where results lie: a folder of this machine (`Path`), or of an object store (`Remote`).

pyarrow's filesystems do the work: S3, Google and Azure are in its wheel, and Ray uses them too.
"""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
from pyarrow import fs

from raysafl.core.text import redacted, size

FULL = (errno.ENOSPC, errno.EDQUOT)
DEFAULTS = {  # one PUT for what fits into it; no endless attempts
    "s3": "allow_delayed_open=true",
    "gs": "retry_limit_seconds=10",
}
HINTS = {
    r"NO_SUCH_BUCKET|bucket does not exist": "make the bucket first",
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|FORBIDDEN|[Cc]redential": "check the credentials "
    "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of this machine) and their rights",
    r"NETWORK_CONNECTION|(?i:curl)|connect": "check the network, and AWS_ENDPOINT_URL "
    "if it is not AWS",
}


class StorageError(ValueError):
    """Results cannot be written or read: a full disk, a missing bucket, a lost network."""


@dataclass(frozen=True, order=True)
class Remote:
    """A file or folder of an object store, with the little of `Path` that results need.

    A file is written whole or not at all: a reader, or a writer killed while it writes, leaves
    the old content or the new.

    Raises:
        StorageError: the store cannot be reached, or refuses; said with what to do.
    """

    uri: str = field(repr=False, compare=False)  # as named; may hold credentials
    key: str  # bucket/folder/file

    def __str__(self) -> str:
        return f"{self.uri.partition(':')[0]}://{self.key}"

    def __truediv__(self, name: str) -> "Remote":
        return Remote(self.uri, f"{self.key}/{name}")

    @property
    def name(self) -> str:
        """The last part of the key."""
        return PurePosixPath(self.key).name

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def parent(self) -> "Remote":
        """The folder around it; a bucket's is itself."""
        return Remote(self.uri, self.key.rpartition("/")[0] or self.key)

    def resolve(self) -> "Remote":
        """Itself: there are no links in an object store."""
        return self

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        with self._asked() as store:
            return bool(store.get_file_info(self.key).type == fs.FileType.File)

    def read_bytes(self) -> bytes:
        """The content. Raises FileNotFoundError if there is none."""
        with self._asked() as store, store.open_input_file(self.key) as source:
            return bytes(source.readall())

    def read_text(self) -> str:
        """The content as text."""
        return self.read_bytes().decode()

    def write_bytes(self, content: bytes) -> None:
        """Replace the content."""
        with self._asked() as store, store.open_output_stream(self.key) as sink:
            sink.write(content)

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object."""
        try:
            with self._asked() as store:
                store.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def glob(self, pattern: str) -> Iterator["Remote"]:
        """The files below whose path matches; each part of the pattern is one level."""
        first, _, rest = pattern.partition("/")
        if not re.search(r"[*?\[]", first):
            inside = self / first
            if rest:
                yield from inside.glob(rest)
            elif inside.is_file():
                yield inside
            return
        with self._asked() as store:
            found = store.get_file_info(fs.FileSelector(self.key, allow_not_found=True))
        for info in found:
            if fnmatchcase(info.base_name, first):
                if rest and info.type == fs.FileType.Directory:
                    yield from (self / info.base_name).glob(rest)
                elif not rest and info.type == fs.FileType.File:
                    yield self / info.base_name

    @contextmanager
    def _asked(self) -> Iterator[fs.FileSystem]:
        try:
            yield _opened(self.uri)[0]
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"{self}: {_told(error)}") from error


Place = Path | Remote


def place(where: str | Path | Remote) -> Place:
    """A folder named by a path, a `file://` URI, or the URI of an object store.

    Raises:
        StorageError: the URI is not one, or names a kind of store that pyarrow does not know.
    """
    if isinstance(where, Remote):
        return where
    text = str(where)
    if isinstance(where, Path):
        if re.match(r"(s3|gs|abfs|file):/", text):
            raise StorageError(f"'{text}' was made a Path, which spoils a URI: give it as text")
        return where.resolve()
    if "://" not in text:
        return Path(text).resolve()
    if text.startswith("file://"):
        return Path(url2pathname(urlsplit(text).path)).resolve()
    return Remote(text, _opened(text)[1].rstrip("/"))


@lru_cache
def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """The filesystem and the path in it; cached, as a connection is worth keeping."""
    scheme = uri.partition(":")[0]
    extra = DEFAULTS.get(scheme, "")
    given = urlsplit(uri).query
    if extra.partition("=")[0] not in given:
        uri = f"{uri}{'&' if given else '?'}{extra}"
    try:
        found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException) as error:
        raise StorageError(f"cannot use {redacted(uri)} for results: {_told(error)}") from error
    return found


def _told(error: Exception) -> str:
    """An error of pyarrow's in one line, with what may help."""
    text = redacted(str(error).splitlines()[0] if str(error) else type(error).__name__)
    hint = next((hint for pattern, hint in HINTS.items() if re.search(pattern, text)), "")
    return f"{text}; {hint}" if hint else text


@contextmanager
def full_disk_told(folder: Place, needed: int | None = None) -> Iterator[None]:
    """Turn "no space left" into a StorageError that says where, how much, and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        where, wanted = folder if isinstance(folder, Path) else Path.cwd(), ""
        usage = shutil.disk_usage(next(p for p in (where, *where.parents) if p.exists()))
        if needed is not None:
            wanted = f", {size(needed)} were to be written"
        raise StorageError(
            f"the disk of {error.filename or folder} is full: {size(usage.free)} of "
            f"{size(usage.total)} are free{wanted}. Make room there"
        ) from error
