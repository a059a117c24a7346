"""What is known of a local folder that is copied to an object store."""

import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from raysafl.storage.files import atomic_write
from raysafl.storage.paths import NOTE, StorageError

# Of a file: its bytes, and when it was written, in nanoseconds since 1970.
State = tuple[int, int]
LEDGER = "ledger.jsonl"
MANIFEST = "manifest.json"
# What is not copied: hidden names, `..` and empty ones, and what belongs to this machine.
LOCAL = re.compile(
    r"(.*/)?(\.|/|$)|(tune/(?!heartbeat\.txt$)|logs/|mlartifacts/)"
    r"|(.*/)?mlflow\.db[^/]*$|.*\.part$"
)


class Note(BaseModel):
    """What is known of the last copies, stored in `.remote.json`.

    Args:
        folder: the local folder; a copy of it elsewhere is no mirror.
        uri: the URI of the store's folder.
        ledgers: the digest of the store's ledger after the last copy, and of the one that
            an upload has begun to bring there; none before the first copy.
    """

    folder: str
    uri: str
    ledgers: list[str] = []

    @classmethod
    def of(cls, path: Path, uri: str = "") -> Self:
        """Return the note of a folder; a new one if there is none, or the folder was moved.

        Raises:
            StorageError: the note is damaged.
        """
        new = cls(folder=str(path), uri=uri)
        if not (file := path / NOTE).is_file():
            return new
        try:
            note = cls.model_validate_json(file.read_bytes())
        except ValueError as error:
            advice = f"move {path} away, or delete it"
            raise StorageError(f"{file} cannot be read ({error}): {advice}") from error
        return note if note.folder == new.folder else new

    def write(self) -> None:
        """Store the note in its folder."""
        content = self.model_dump_json().encode()
        atomic_write(Path(self.folder) / NOTE, content, durable=True)


def is_copied(name: str) -> bool:
    """Whether a file is copied, by its path in the folder."""
    return not LOCAL.match(name)


def files_in(path: Path) -> dict[str, State]:
    """Return the files of a folder that are copied, by their paths in it. Links are not."""
    files = [Path(at, name) for at, _, names in os.walk(path) for name in names]
    states = {file.relative_to(path).as_posix(): state_of(file) for file in files}
    return {name: state for name, state in states.items() if state and is_copied(name)}


def state_of(file: Path) -> State | None:
    """Return the state of a file; None if there is none, or a link."""
    with suppress(FileNotFoundError):
        found = file.lstat()
        if stat.S_ISREG(found.st_mode):
            return found.st_size, found.st_mtime_ns
    return None
