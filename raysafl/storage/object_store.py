"""A folder of an object store, through pyarrow's filesystems: S3, Google and Azure."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlsplit

from pyarrow import ArrowException, fs

from raysafl.storage.paths import StorageError
from raysafl.storage.redaction import redacted

# Options of a URI that does not set them: small files are written by one request, and a
# lost server of Google's is not tried for 15 minutes.
DEFAULTS = {"s3": "allow_delayed_open=true", "gs": "retry_limit_seconds=10"}
# Pattern in an error message of pyarrow -> what the user may do.
HINTS = {
    r"NO_SUCH_BUCKET|bucket does not exist": "make the bucket first",
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|FORBIDDEN|[Cc]redential": "check the credentials "
    "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role of this machine) and their rights",
    r"NETWORK_CONNECTION|(?i:curl)|connect": "check the network, and AWS_ENDPOINT_URL "
    "if it is not AWS",
}


@dataclass(frozen=True)
class RemoteFolder:
    """A folder of an object store. All errors of the store are a StorageError.

    Args:
        uri: its URI, as the user gave it, with its query.
    """

    uri: str

    def __str__(self) -> str:
        return self.uri.partition("?")[0].rstrip("/")

    @property
    def key(self) -> str:
        """The bucket and the path in it, as the path of a folder.

        Raises:
            StorageError: the URI cannot be used, or has a part such as `..`.
        """
        key = _filesystem(self.uri)[1]
        if not all(part.strip(".") for part in key.split("/")):
            raise StorageError(f"{self} has a part that no folder can be named after")
        return key

    def below(self, name: str) -> "RemoteFolder":
        """Return a folder in this one."""
        _, mark, query = self.uri.partition("?")
        return RemoteFolder(f"{self}/{quote(name)}{mark}{query}")

    def inside(self) -> dict[str, bool]:
        """Return the names directly in the folder, and whether each is a folder's.

        Raises:
            StorageError: the bucket does not exist.
        """
        with self._connected() as (store, key):
            selector = fs.FileSelector(key, allow_not_found=True)
            listed = store.get_file_info(selector)
            if not listed:
                self._refuse_missing_bucket(store, key.partition("/")[0])
        return {info.base_name: not info.is_file for info in listed}

    def files(self) -> dict[str, tuple[int, int]]:
        """Return the bytes of all files in the folder and below, by their paths in it.

        Beside them it says when each was written, in nanoseconds since 1970.
        """
        with self._connected() as (store, key):
            selector = fs.FileSelector(key, recursive=True, allow_not_found=True)
            listed = store.get_file_info(selector)
        files = [info for info in listed if info.is_file]
        return {i.path[len(key) + 1 :]: (i.size, i.mtime_ns) for i in files}

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        with self._connected() as (store, key), suppress(FileNotFoundError):
            with store.open_input_file(f"{key}/{name}") as source:
                return bytes(source.readall())
        return None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file as a whole: if this is broken off, the old one stays."""
        with self._connected() as (store, key):
            with store.open_output_stream(f"{key}/{name}") as sink:
                sink.write(content)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._connected() as (store, key), suppress(FileNotFoundError):
            store.delete_file(f"{key}/{name}")

    def _refuse_missing_bucket(self, store: fs.FileSystem, bucket: str) -> None:
        # Keys that are for one folder alone may not ask for the bucket.
        with suppress(OSError):
            if store.get_file_info(bucket).type == fs.FileType.NotFound:
                raise StorageError(f"{self}: its bucket does not exist; make it first")

    @contextmanager
    def _connected(self) -> Iterator[tuple[fs.FileSystem, str]]:
        try:
            yield _filesystem(self.uri)
        except (OSError, ArrowException) as error:
            raise StorageError(f"{self}: {_reason_and_hint(error)}") from None


@lru_cache
def _filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem and the path in it; the cache keeps connections open."""
    extra = DEFAULTS.get(uri.partition(":")[0], "")
    given = urlsplit(uri).query
    full = uri
    if extra.partition("=")[0] not in given:
        full = f"{uri}{'&' if given else '?'}{extra}"
    try:
        store, key = fs.FileSystem.from_uri(full)
    except (OSError, ArrowException) as error:
        reason = _reason_and_hint(error)
        raise StorageError(f"cannot use {uri} for results: {reason}") from error
    return store, key.rstrip("/")


def _reason_and_hint(error: Exception) -> str:
    """Return an error of a store as one line without secrets, and a hint if any."""
    text = (redacted(str(error)).splitlines() or [type(error).__name__])[0]
    hints = [hint for pattern, hint in HINTS.items() if re.search(pattern, text)]
    return f"{text}; {hints[0]}" if hints else text
