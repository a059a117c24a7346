"""The copy of a sweep's folder in an object store.

`--out s3://bucket/folder` has a local folder copied to a store while the sweep runs, and back
before another machine continues it. If the store's ledger is not that of this folder's last
copy, somebody else has written to the store.

A file is copied if the store has none of its size that was written since. What the store holds
can be continued at each moment: parts are uploaded before the ledger that names them, and
deleted after it.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from raysafl.storage.copied import (
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
from raysafl.storage.sealed import sha256_of
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
        there = _digest_of_ledger(self.remote.read(LEDGER))
        is_emptied = there and not _digest_of_ledger(self._ledger())
        if there in note.ledgers and not is_emptied:
            if note.uri != self.uri:
                note.model_copy(update={"uri": self.uri}).write()
            return
        with Store(self.path).lock():
            if self._listed():
                if _digest_of_ledger(self._ledger()) not in ("", there, *note.ledgers):
                    raise self._both_changed()
                there = self._copy_back()
            Note(folder=str(self.path), uri=self.uri, ledgers=[there]).write()

    def push(self) -> None:
        """Copy to the store what has changed in the folder, which may be written to meanwhile.

        Raises:
            StorageError: somebody else has changed the store; or it cannot be used.
        """
        note = Note.of(self.path, self.uri)
        there = _digest_of_ledger(self.remote.read(LEDGER))
        # Files are listed after the ledger is read: those that it names are among them.
        ledger = self._ledger()
        if there not in note.ledgers or (there and not ledger):
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
        note.ledgers = [there, _digest_of_ledger(ledger)]
        note.write()
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
        note.ledgers = [_digest_of_ledger(ledger)]
        note.write()

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

    def _ledger(self) -> bytes:
        file = self.path / LEDGER
        return file.read_bytes() if state_of(file) else b""

    def _listed(self) -> dict[str, State]:
        """Return the store's files that are copied."""
        return {n: s for n, s in self.remote.files().items() if is_copied(n)}

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


def _top(name: str) -> str:
    return name.partition("/")[0]


def _digest_of_ledger(ledger: bytes | None) -> str:
    """Return what tells a ledger from others; nothing if there is none."""
    return sha256_of(ledger) if ledger else ""
