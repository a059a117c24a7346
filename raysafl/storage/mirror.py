"""The copy of a sweep's folder in an object store.

`--out s3://bucket/folder` has a local folder copied to a store while the sweep runs, and back
before another machine continues it. Each push has a random id, which the store holds: if it
is not that of this folder's last push or pull, somebody else has written to the store.

What the store holds can be continued at each moment: parts are uploaded before the ledger
that names them, and deleted after it.
"""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from raysafl.storage.copied import (
    GENERATION,
    LEDGER,
    MANIFEST,
    Note,
    State,
    files_in,
    is_copied,
    state_of,
)
from raysafl.storage.files import atomic_write, delete
from raysafl.storage.object_store import RemoteFolder
from raysafl.storage.paths import StorageError, resolved
from raysafl.storage.store import Store

# The folders of files that are named by their content.
PARTS = ("rounds", "clients")
# The folders of all files that the ledger names.
NAMED = (*PARTS, "models", "states")
# Results, in the order in which they are uploaded. What is made from them follows.
RESULTS = ("open", *NAMED, LEDGER, MANIFEST)
# A folder with one of these is that of a sweep. (Others may be names of sweeps.)
OF_A_SWEEP = {"open", "rounds", LEDGER, MANIFEST}


@dataclass(frozen=True)
class Mirror:
    """A sweep's local folder, without links in its path, and the URI of its copy."""

    path: Path
    uri: str

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Return the mirror of a folder; None if it is not copied, or was moved."""
        folder = resolved(path)
        uri = Note.of(folder).uri
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
        note = Note.of(self.path, self.uri)
        there = self._generation()
        if there in (note.generation, note.begun):
            if note.uri != self.uri:
                note.model_copy(update={"uri": self.uri}).write()
            return
        with Store(self.path).lock():
            is_empty = not self._listed()
            if not is_empty and Note.of(self.path).has_progress():
                raise self._both_changed()
            note = Note(folder=str(self.path), uri=self.uri, copied=None)
            # If this process is killed while it copies, the next one copies all again.
            note.write()
            note.copied = {} if is_empty else self._copy_back()
            note.generation = there
            note.write()

    def push(self) -> None:
        """Copy to the store what has changed in the folder, which may be written to meanwhile.

        Raises:
            StorageError: somebody else has changed the store; or it cannot be used.
        """
        note = Note.of(self.path, self.uri)
        there = self._generation()
        if there not in (note.generation, note.begun) or note.copied is None:
            raise self._both_changed()
        # Files are listed after the ledger is read: those that it names are among them.
        before = state_of(self.path / LEDGER)
        ledger = self._ledger()
        here = files_in(self.path)
        here.pop(LEDGER, None)
        if before:
            here[LEDGER] = before
        if not self._ledger().startswith(ledger):
            # Parts are being joined: the next push copies them.
            return
        new = {name for name, state in here.items() if note.copied.get(name) != state}
        known = {n for n in self._listed() if n in note.copied or _top(n) in RESULTS}
        if not new and known <= here.keys():
            return
        note.generation = there
        note.begun = uuid.uuid4().hex
        note.write()
        for name in sorted(new, key=lambda n: [*RESULTS, _top(n)].index(_top(n))):
            try:
                content = ledger if name == LEDGER else (self.path / name).read_bytes()
            except FileNotFoundError:
                if _top(name) in NAMED:
                    # They were joined: the ledger waits for the next push.
                    return
                del here[name]
                continue
            self.remote.write(name, content)
        for name in known - here.keys():
            self.remote.delete(name)
        self.remote.write(GENERATION, note.begun.encode())
        note.generation = note.begun
        note.copied = here
        note.write()

    def _copy_back(self) -> dict[str, State]:
        """Make the local results those of the store, and return the files that were copied."""
        ledger: bytes | None = b"not read yet"
        listed = dict[str, int]()
        # If the ledger is the same after its parts were read, none had been deleted before.
        while (newest := self.remote.read(LEDGER)) != ledger:
            ledger = newest
            listed = self._listed()
            for name in listed.keys() - {LEDGER}:
                here = state_of(self.path / name)
                if _top(name) in PARTS and here and here[0] == listed[name]:
                    continue
                if (content := self.remote.read(name)) is not None:
                    self._write(name, content)
        if ledger is not None:
            self._write(LEDGER, ledger)
        for name in files_in(self.path).keys() - listed.keys():
            if _top(name) in RESULTS:
                delete(self.path / name)
        return {n: state for n, state in files_in(self.path).items() if n in listed}

    def _ledger(self) -> bytes:
        file = self.path / LEDGER
        return file.read_bytes() if file.is_file() else b""

    def _generation(self) -> str:
        """Return the id of the last push to the store; empty if there was none."""
        return (self.remote.read(GENERATION) or b"").decode(errors="replace")

    def _listed(self) -> dict[str, int]:
        """Return the bytes of the store's files that are copied."""
        return {n: s for n, s in self.remote.files().items() if is_copied(n)}

    def _write(self, name: str, content: bytes) -> None:
        file = self.path / name
        if not resolved(file.parent).is_relative_to(self.path):
            raise StorageError(f"{file} leads out of {self.path}; results stay inside")
        atomic_write(file, content, durable=True)

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


def _top(name: str) -> str:
    return name.partition("/")[0]
