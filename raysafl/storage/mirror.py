"""Copies of results in an object store.

The files of a sweep lie in a local folder, and `--out s3://bucket/folder` has them copied
to a store while the sweep runs, and back before another machine continues it. The local
file `.remote.json` says where the store is, and in which state each file was copied last:
so it is known on which side a file has changed since.

The store holds at each moment what can be continued: parts are uploaded before the ledger
that names them, and deleted after it. pyarrow's filesystems access the stores: S3, Google
and Azure are in its wheel.
"""

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

from filelock import FileLock
from pyarrow import ArrowException, fs
from pydantic import BaseModel

from raysafl.storage.paths import NOTE, StorageError, explain_full_disk, resolved
from raysafl.storage.redaction import redacted

# Between two copies to the store while a sweep runs.
PUSH_SECONDS = 30.0
# So often a store that is written to meanwhile is read again.
PULL_TIMES = 5
LEDGER = "ledger.jsonl"
HEARTBEAT = "tune/heartbeat.txt"
MANIFEST = "manifest.json"
# The folders that are copied first, in this order, before the ledger.
FIRST = ("open", "rounds", "clients", "models", "states")
# A folder with one of these is that of a sweep. (Another may be the name of a sweep.)
OF_A_SWEEP = {*FIRST[:2], LEDGER, MANIFEST}
# Folders and files that stay on this machine, besides those whose names begin with a dot.
LOCAL = re.compile(r"(tune|logs|mlartifacts)/|(.*/)?mlflow\.db[^/]*$|.*\.part$")
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

# The size of a file in bytes, and when it was written, in nanoseconds.
State = tuple[int, int]
# Of files, by their names: the paths below the folder.
States = dict[str, State]


class Note(BaseModel):
    """What is known of the last copies, stored in `.remote.json`.

    Args:
        folder: the local folder; a copy of it elsewhere is no mirror.
        uri: the URI of the store's folder.
        here: the state of each copied file in the local folder.
        there: its state in the store.
        begun: files whose upload or deletion in the store has begun, and may not be over.
    """

    folder: str
    uri: str
    here: dict[str, State] = {}
    there: dict[str, State] = {}
    begun: set[str] = set()

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a note.

        Raises:
            StorageError: it is damaged.
        """
        try:
            return cls.model_validate_json(file.read_bytes())
        except ValueError as error:
            raise StorageError(
                f"{file} cannot be read ({error}): move {file.parent} away, or delete it"
            ) from error

    def changed_here(self, here: States) -> set[str]:
        """Return the results that differ in the local folder from what was copied last."""
        return set(filter(_is_result, _unlike(self.here, here)))

    def changed_there(self, there: States) -> set[str]:
        """Return the results in the store that somebody else has changed since."""
        return set(filter(_is_result, _unlike(self.there, there) - self.begun))

    def add(self, name: str, here: States, there: States) -> None:
        """Take note that a file was copied, or is on neither side any more."""
        for noted, states in ((self.here, here), (self.there, there)):
            noted.pop(name, None)
            if name in states:
                noted[name] = states[name]

    def add_equal(self, here: States, there: States) -> None:
        """Take note of files that are equal on both sides: `pull` gives them equal times."""
        for name in {*self.here, *here}:
            if here.get(name) == there.get(name):
                self.add(name, here, there)


@dataclass(frozen=True)
class Mirror:
    """A local folder and its copy in an object store.

    If it is no folder of a sweep, the sweeps one level below it are copied, each with a
    note of its own.

    Args:
        path: the local folder, without links in its path.
        uri: the URI of the copy, as the user gave it, with its query.
    """

    path: Path
    uri: str

    @classmethod
    def of_uri(cls, uri: str) -> Self:
        """Return the mirror of a store's folder; its local folder is below the current one.

        Raises:
            StorageError: the URI is malformed, or of a kind that pyarrow does not know.
        """
        key = _opened(uri)[1]
        if not all(part.strip(".") for part in key.split("/")):
            raise StorageError(f"{uri} has a part that no folder can be named after")
        local = Path("results", uri.partition(":")[0], *key.split("/"))
        return cls(resolved(local), uri)

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Return the mirror of a local folder; None if it is not copied to a store.

        A folder that was moved, or is a copy of such a folder, is not copied.
        """
        path = resolved(path)
        for folder in (path, *path.parents):
            if (folder / NOTE).is_file():
                note = Note.read(folder / NOTE)
                whole = cls(folder, note.uri)
                is_own = note.folder == str(folder)
                return whole._below(path.relative_to(folder)) if is_own else None
        return None

    def __str__(self) -> str:
        return self.uri.partition("?")[0].rstrip("/")

    def pull(self) -> None:
        """Copy to the local folder what others have changed in the store.

        The local folder is left as it is if it alone has changed.

        Raises:
            StorageError: both have changed; or the store or the folder cannot be used.
        """
        inside = self._names()
        if not inside:
            self._refuse_missing_bucket()
        if self._is_sweep() or OF_A_SWEEP & inside:
            with self._locked():
                self._pull_sweep()
            return
        with self._locked():
            self._write_note(self._note())
        for name in sorted(filter(_is_copied, inside)):
            below = self._below(Path(name))
            if OF_A_SWEEP & below._names():
                with below._locked():
                    below._pull_sweep()

    def push(self) -> None:
        """Copy to the store what has changed in the local folder.

        It may be written to meanwhile. If files that were to be copied are deleted before
        they are read, the rest waits for the next push.

        Raises:
            StorageError: somebody else has changed the store too; or it cannot be used.
        """
        if self._is_sweep():
            with self._locked():
                self._push_sweep()
            return
        for inside in sorted(self.path.iterdir()):
            if inside.is_symlink() or not _is_copied(inside.name):
                continue
            below = self._below(Path(inside.name))
            if inside.is_file():
                self._upload(inside.name, inside.read_bytes())
            elif below._is_sweep():
                below.push()

    @contextmanager
    def keep_pushing(self, say: Callable[[str], None]) -> Iterator[None]:
        """Push every 30 seconds in the block, and once more at its end.

        Args:
            say: is given a text once if the store cannot be written to; the block goes on.

        Raises:
            StorageError: the last push failed, and the block did not.
        """
        is_over = threading.Event()

        def push_again_and_again() -> None:
            is_said = False
            while not is_over.wait(PUSH_SECONDS):
                try:
                    self.push()
                except (StorageError, OSError) as error:
                    if not is_said:
                        say(
                            f"Results are in {self.path} and not copied: {error}. The sweep "
                            "goes on, and the copy is tried again and again"
                        )
                    is_said = True

        pushing = threading.Thread(target=push_again_and_again, daemon=True)
        pushing.start()
        try:
            yield
        except BaseException:
            is_over.set()
            pushing.join()
            # The error of the block matters more, and the local folder has all results.
            with suppress(StorageError, OSError):
                self.push()
            raise
        is_over.set()
        pushing.join()
        try:
            self.push()
        except (StorageError, OSError) as error:
            raise StorageError(
                f"the results are complete in {self.path}, but not copied: {error}. "
                "The same command copies them"
            ) from error

    def _pull_sweep(self) -> None:
        for _ in range(PULL_TIMES):
            there = self._listed()
            here = self._files()
            note = self._note()
            note.add_equal(here, there)
            self._refuse_if_lost(note, there)
            if note.changed_here(here):
                if note.changed_there(there):
                    raise self._both_changed()
                # What is newer is the local folder.
                self._write_note(note)
                return
            if self._copy_back(note, there):
                return
        raise StorageError(
            f"{self} is written to all the time, so it could not be copied to {self.path}: "
            "give the command again"
        )

    def _copy_back(self, note: Note, there: States) -> bool:
        """Make the local folder equal to the store; False if the store changes meanwhile.

        Before the ledger is written, all parts that it names have been.
        """
        newer = {n for n, state in there.items() if note.there.get(n) != state}
        for name in sorted(newer, key=_place):
            try:
                content = self._download(name)
            except FileNotFoundError:
                return False
            if name == LEDGER and self._listed().get(LEDGER) != there[LEDGER]:
                return False
            self._write(name, content, there[name][1])
        for name in note.here.keys() - there.keys():
            self._local(name).unlink(missing_ok=True)
        here = self._files()
        for name in {*note.here, *there}:
            note.add(name, here, there)
        note.begun.clear()
        self._write_note(note)
        return True

    def _push_sweep(self) -> None:
        ledger, here = self._moment()
        there = self._listed()
        note = self._note()
        note.add_equal(here, there)
        self._refuse_if_lost(note, there)
        if note.changed_here(here) and note.changed_there(there):
            raise self._both_changed()
        newer = {n for n, state in here.items() if note.here.get(n) != state}
        gone = (note.here.keys() | note.begun) & there.keys() - here.keys()
        if not newer and not gone:
            return
        note.begun |= newer | gone
        self._write_note(note)
        copied = []
        for name in sorted(newer, key=_place):
            try:
                # It is read as a whole, as an upload that is broken off here would count.
                content = ledger if name == LEDGER else (self.path / name).read_bytes()
            except FileNotFoundError:
                gone = set()
                break
            self._upload(name, content)
            copied.append(name)
        else:
            note.begun.clear()
        for name in gone:
            self._delete(name)
        there = self._listed()
        for name in (*copied, *gone):
            note.add(name, here, there)
        self._write_note(note)

    def _moment(self) -> tuple[bytes, States]:
        """Return the ledger, and all files at a moment at which it was the ledger."""
        while True:
            before = _state(self.path / LEDGER)
            ledger = (self.path / LEDGER).read_bytes() if before else b""
            here = self._files()
            if before == here.get(LEDGER) and (not before or before[0] == len(ledger)):
                return ledger, here

    def _refuse_if_lost(self, note: Note, there: States) -> None:
        if note.there and not there:
            raise StorageError(
                f"{self} holds nothing any more, and {self.path} has a copy: delete this "
                f"folder if it is not needed, or {self.path / NOTE} alone to copy it again"
            )

    def _both_changed(self) -> StorageError:
        return StorageError(
            f"both {self} and {self.path} have changed since the last copy: another machine "
            "writes there too, or did. To go on from the store, delete or move the local "
            "folder; to keep what is in the folder, move it and give another --out"
        )

    def _files(self) -> States:
        """Return the states of all local files that are copied. Links are not."""
        found = {}
        for folder, _, names in os.walk(self.path):
            for name in names:
                file = Path(folder, name)
                relative = file.relative_to(self.path).as_posix()
                if _is_copied(relative) and (state := _state(file)):
                    found[relative] = state
        return found

    def _listed(self) -> States:
        """Return the states of all files of the store that are copied."""
        with self._connected() as (store, key):
            selector = fs.FileSelector(key, recursive=True, allow_not_found=True)
            listed = [info for info in store.get_file_info(selector) if info.is_file]
        states = {i.path[len(key) + 1 :]: (i.size, i.mtime_ns) for i in listed}
        return {name: state for name, state in states.items() if _is_copied(name)}

    def _names(self) -> set[str]:
        """Return the names of the files and folders directly in the store's folder."""
        with self._connected() as (store, key):
            selector = fs.FileSelector(key, allow_not_found=True)
            return {info.base_name for info in store.get_file_info(selector)}

    def _refuse_missing_bucket(self) -> None:
        store, key = _opened(self.uri)
        # Keys that are for one folder alone may not ask for the bucket.
        with suppress(OSError):
            bucket = store.get_file_info(key.partition("/")[0])
            if bucket.type == fs.FileType.NotFound:
                raise StorageError(f"{self}: its bucket does not exist; make it first")

    def _is_sweep(self) -> bool:
        return any((self.path / name).exists() for name in OF_A_SWEEP)

    def _below(self, inside: Path) -> Self:
        """Return the mirror of a folder in this one."""
        place, mark, query = self.uri.partition("?")
        uri = "/".join([place.rstrip("/"), *map(quote, inside.parts)])
        return type(self)(self.path / inside, f"{uri}{mark}{query}")

    def _upload(self, name: str, content: bytes) -> None:
        with self._connected() as (store, key):
            with store.open_output_stream(f"{key}/{name}") as sink:
                sink.write(content)

    def _download(self, name: str) -> bytes:
        with self._connected() as (store, key):
            with store.open_input_file(f"{key}/{name}") as source:
                return bytes(source.readall())

    def _delete(self, name: str) -> None:
        with self._connected() as (store, key), suppress(FileNotFoundError):
            store.delete_file(f"{key}/{name}")

    def _local(self, name: str) -> Path:
        """Return a file of the local folder, unless its name or a link leads out of it."""
        file = self.path / name
        if not resolved(file.parent).is_relative_to(self.path):
            raise StorageError(f"{file} leads out of {self.path}; results stay inside")
        return file

    def _write(self, name: str, content: bytes, mtime_ns: int | None = None) -> None:
        """Replace a local file as a whole, and set when it was written."""
        file = self._local(name)
        part = file.with_name(f".{file.name}.{os.getpid()}.part")
        with self._written_to(), explain_full_disk(file.parent, len(content)):
            file.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content)
            if mtime_ns is not None:
                os.utime(part, ns=(mtime_ns, mtime_ns))
            part.replace(file)

    def _note(self) -> Note:
        file = self.path / NOTE
        note = Note.read(file) if file.is_file() else Note(folder="", uri="")
        return note.model_copy(update={"folder": str(self.path), "uri": self.uri})

    def _write_note(self, note: Note) -> None:
        self._write(NOTE, note.model_dump_json().encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let no other process of this machine copy the folder at the same time."""
        with self._written_to():
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".remote.lock")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _written_to(self) -> Iterator[None]:
        """Turn an error of the local folder into a StorageError."""
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"cannot write results of {self} to {self.path}: {error.strerror}"
            ) from error

    @contextmanager
    def _connected(self) -> Iterator[tuple[fs.FileSystem, str]]:
        """Give the filesystem and the path in it, and explain its errors."""
        try:
            yield _opened(self.uri)
        except FileNotFoundError:
            raise
        except (OSError, ArrowException) as error:
            raise StorageError(f"{self}: {_reason_and_hint(error)}") from None


@lru_cache
def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem and the path in it; the cache keeps connections open.

    Raises:
        StorageError: the URI is malformed, or of a kind that pyarrow does not know.
    """
    extra = DEFAULTS.get(uri.partition(":")[0], "")
    given = urlsplit(uri).query
    if extra.partition("=")[0] not in given:
        uri = f"{uri}{'&' if given else '?'}{extra}"
    try:
        store, key = fs.FileSystem.from_uri(uri)
    except (OSError, ArrowException) as error:
        raise StorageError(
            f"cannot use {uri} for results: {_reason_and_hint(error)}"
        ) from error
    return store, key.rstrip("/")


def _reason_and_hint(error: Exception) -> str:
    """Return an error of a store as one line without secrets, and a hint if any."""
    lines = redacted(str(error)).splitlines()
    text = lines[0] if lines else type(error).__name__
    hint = next(
        (hint for pattern, hint in HINTS.items() if re.search(pattern, text)), ""
    )
    return f"{text}; {hint}" if hint else text


def _is_copied(name: str) -> bool:
    """Whether a file is copied: hidden ones, and those that end as `..` does, are not."""
    if any(not part or part.startswith(".") for part in name.split("/")):
        return False
    return name == HEARTBEAT or not LOCAL.match(name)


def _is_result(name: str) -> bool:
    """Whether a file is a result; others are made from results, or show how far they are."""
    return name.partition("/")[0] in (*FIRST, LEDGER, MANIFEST)


def _place(name: str) -> tuple[int, str]:
    """Return by what files are sorted in the order in which they are copied."""
    order = (*FIRST, LEDGER)
    top = name.partition("/")[0]
    return (order.index(top) if top in order else len(order)), name


def _state(file: Path) -> State | None:
    """Return the state of a file; None if there is none, or a link."""
    try:
        found = file.lstat()
    except FileNotFoundError:
        return None
    is_file = stat.S_ISREG(found.st_mode)
    return (found.st_size, found.st_mtime_ns) if is_file else None


def _unlike(noted: States, states: States) -> set[str]:
    return {n for n in {*noted, *states} if noted.get(n) != states.get(n)}
