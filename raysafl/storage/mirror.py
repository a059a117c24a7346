"""The copy of a sweep's folder in an object store: S3, Google or Azure, through pyarrow.

`--out s3://bucket/folder` has a local folder copied to a store while the sweep runs, and back
before another machine continues it. If the store's ledger is not that of this folder's last
copy, somebody else has written to the store.

A file is copied if the store has none of its size that was written since. What the store holds
can be continued at each moment: parts are uploaded before the ledger that names them, and
deleted after it.
"""

import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

from pyarrow import ArrowException, fs

from raysafl.storage.paths import (
    NOTE,
    StorageError,
    atomic_write,
    delete,
    resolved,
    sha256_of,
)
from raysafl.storage.redaction import redacted
from raysafl.storage.store import Store

# Of a file: its bytes, and when it was written, in nanoseconds since 1970.
State = tuple[int, int]
LEDGER = "ledger.jsonl"
# The folders of files that are named by their content.
PARTS = ("rounds", "clients")
# The folders of all files that the ledger names.
NAMED = (*PARTS, "models", "states")
# Results, in the order in which they are uploaded. What is made from them follows.
RESULTS = ("open", *NAMED, LEDGER, "manifest.json")
# A folder with one of these is that of a sweep. (Others may be names of sweeps.)
OF_A_SWEEP = {"open", "rounds", LEDGER, "manifest.json"}
# What is not copied: hidden names, `..` and empty ones, and what belongs to this machine.
LOCAL = re.compile(
    r"(.*/)?(\.|/|$)|(tune/(?!heartbeat\.txt$)|logs/|mlartifacts/)"
    r"|(.*/)?mlflow\.db[^/]*$|.*\.part$"
)
# Between two copies to the store while a sweep runs.
PUSH_SECONDS = 30.0
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
            # Keys that are for one folder alone may not ask for the bucket.
            with suppress(OSError):
                bucket = () if listed else store.get_file_info([key.partition("/")[0]])
                if any(info.type == fs.FileType.NotFound for info in bucket):
                    raise StorageError(
                        f"{self}: its bucket does not exist; make it first"
                    )
        return {info.base_name: not info.is_file for info in listed}

    def files(self) -> dict[str, State]:
        """Return the state of all files in the folder and below, by their paths in it."""
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


@dataclass(frozen=True)
class Mirror:
    """A sweep's local folder, without links in its path, and the URI of its copy.

    `.remote.json` in the folder notes both, and `ledgers`: the digest of the store's ledger
    after the last copy, and of the one that an upload has begun to bring there.
    """

    path: Path
    uri: str

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Return the mirror of a folder; None if it is not copied, or was moved."""
        folder = resolved(path)
        uri = _noted(folder).get("uri")
        return cls(folder, uri) if uri else None

    @property
    def remote(self) -> RemoteFolder:
        """The folder of the store."""
        return RemoteFolder(self.uri)

    def pull(self) -> None:
        """Copy to the local folder what others have changed in the store.

        Raises:
            StorageError: both have changed; or the store or the folder cannot be used.
            SweepBusyError: another process writes to the folder.
        """
        note = _noted(self.path)
        ledgers = note.get("ledgers", [])
        there = _digest_of_ledger(self.remote.read(LEDGER))
        is_emptied = there and not self._ledger()
        if there in ledgers and not is_emptied:
            if note["uri"] != self.uri:
                self._note(*ledgers)
            return
        with Store(self.path).lock():
            if self._listed():
                if _digest_of_ledger(self._ledger()) not in ("", there, *ledgers):
                    raise self._both_changed()
                there = self._copy_back()
            self._note(there)

    def push(self) -> None:
        """Copy to the store what has changed in the folder, which may be written to meanwhile.

        Raises:
            StorageError: somebody else has changed the store; or it cannot be used.
        """
        there = _digest_of_ledger(self.remote.read(LEDGER))
        # Files are listed after the ledger is read: those that it names are among them.
        ledger = self._ledger()
        if there not in _noted(self.path).get("ledgers", []) or (there and not ledger):
            raise self._both_changed()
        here = files_in(self.path)
        if not self._ledger().startswith(ledger):
            # Parts are being joined: the next push copies them.
            return
        listed = self._listed()
        new = set[str]()
        for name, (size, written) in here.items():
            known_size, copied = listed.get(name, (-1, 0))
            if size != known_size or copied < written:
                new.add(name)
        gone = {n for n in listed.keys() - here.keys() if _top(n) in RESULTS}
        if not new and not gone:
            return
        self._note(there, _digest_of_ledger(ledger))
        for name in sorted(new, key=lambda n: [*RESULTS, _top(n)].index(_top(n))):
            try:
                content = ledger if name == LEDGER else (self.path / name).read_bytes()
            except FileNotFoundError:
                if _top(name) in NAMED:
                    # They were joined: the ledger waits for the next push.
                    return
                continue
            self.remote.write(name, content)
        for name in gone:
            self.remote.delete(name)
        self._note(_digest_of_ledger(ledger))

    @contextmanager
    def pushed(self, say: Callable[[str], None]) -> Iterator[None]:
        """Push every 30 seconds in the block, and once more at its end (`paths.pushed`)."""
        is_over = threading.Event()
        errors: list[Exception] = []
        is_done = False

        def push_again_and_again() -> None:
            while not is_over.wait(PUSH_SECONDS):
                try:
                    self.push()
                except (StorageError, OSError) as error:
                    if not errors:
                        say(
                            f"Results are in {self.path} and not copied: {error}. The sweep "
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
                self.push()
            except (StorageError, OSError) as error:
                # An error of the block matters more, and the folder has all results.
                if is_done:
                    raise StorageError(
                        f"the results are complete in {self.path}, but not copied: {error}. "
                        "The same command copies them"
                    ) from error

    def _copy_back(self) -> str:
        """Make the local results those of the store, and return the digest of the ledger."""
        ledger: bytes | None = b"not read yet"
        listed = dict[str, State]()
        # If the ledger is the same after its parts were read, none had been deleted before.
        while (newest := self.remote.read(LEDGER)) != ledger:
            ledger = newest
            listed = self._listed()
            for name in listed.keys() - {LEDGER}:
                here = state_of(self.path / name)
                if _top(name) in PARTS and here and here[0] == listed[name][0]:
                    continue
                if (content := self.remote.read(name)) is not None:
                    self._write(name, content, listed[name])
        if ledger is not None:
            self._write(LEDGER, ledger, listed[LEDGER])
        for name in files_in(self.path).keys() - listed.keys():
            if _top(name) in RESULTS:
                delete(self.path / name)
        return _digest_of_ledger(ledger)

    def _note(self, *ledgers: str) -> None:
        note = {"folder": str(self.path), "uri": self.uri, "ledgers": ledgers}
        atomic_write(self.path / NOTE, json.dumps(note).encode(), durable=True)

    def _ledger(self) -> bytes:
        file = self.path / LEDGER
        return file.read_bytes() if state_of(file) else b""

    def _listed(self) -> dict[str, State]:
        """Return the store's files that are copied."""
        return {n: s for n, s in self.remote.files().items() if not LOCAL.match(n)}

    def _write(self, name: str, content: bytes, state: State) -> None:
        file = self.path / name
        if not resolved(file.parent).is_relative_to(self.path):
            raise StorageError(f"{file} leads out of {self.path}; results stay inside")
        atomic_write(file, content, durable=True)
        # So it is as old as the copy.
        os.utime(file, ns=(state[1], state[1]))

    def _both_changed(self) -> StorageError:
        return StorageError(
            f"both {self.remote} and {self.path} have changed since the last copy: another "
            "machine writes there too, or did. To go on from the store, delete or move the "
            "local folder; to keep what is in the folder, move it and give another --out"
        )


def opened(uri: str) -> Path:
    """Return the local folder of a store's folder, after what is newer there was pulled.

    It is that of a sweep, or has sweeps one level below, each with a mirror of its own.

    Raises:
        StorageError: the URI or the store cannot be used, or both sides have changed.
        SweepBusyError: another process writes to the local folder.
    """
    remote = RemoteFolder(uri)
    path = resolved(Path("results", uri.partition(":")[0], remote.key))
    inside = remote.inside()
    mirrors = [Mirror(path, uri)]
    if not OF_A_SWEEP & inside.keys():
        folders = [n for n, is_folder in inside.items() if is_folder and n[0] != "."]
        sweeps = [n for n in folders if OF_A_SWEEP & remote.below(n).inside().keys()]
        mirrors = [Mirror(path / n, remote.below(n).uri) for n in sweeps] or mirrors
    for mirror in mirrors:
        mirror.pull()
    return path


def _noted(path: Path) -> dict[str, Any]:
    """Return what a folder's note says; nothing if it has none, or is a copy elsewhere.

    Raises:
        StorageError: the note is damaged.
    """
    if not (file := path / NOTE).is_file():
        return {}
    try:
        note: dict[str, Any] = json.loads(file.read_bytes())
        return note if note["folder"] == str(path) else {}
    except (ValueError, LookupError, TypeError) as error:
        advice = f"move {path} away, or delete it"
        raise StorageError(f"{file} cannot be read ({error}): {advice}") from error


def files_in(path: Path) -> dict[str, State]:
    """Return the files of a folder that are copied, by their paths in it. Links are not."""
    files = [Path(at, name) for at, _, names in os.walk(path) for name in names]
    states = {file.relative_to(path).as_posix(): state_of(file) for file in files}
    return {n: state for n, state in states.items() if state and not LOCAL.match(n)}


def state_of(file: Path) -> State | None:
    """Return the state of a file; None if there is none, or a link."""
    with suppress(FileNotFoundError):
        found = file.lstat()
        if stat.S_ISREG(found.st_mode):
            return found.st_size, found.st_mtime_ns
    return None


def _top(name: str) -> str:
    return name.partition("/")[0]


def _digest_of_ledger(ledger: bytes | None) -> str:
    """Return what tells a ledger from others; nothing if there is none."""
    return sha256_of(ledger) if ledger else ""
