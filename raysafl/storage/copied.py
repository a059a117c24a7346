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

# Of a local file: its bytes, and when it was written.
State = tuple[int, int]
LEDGER = "ledger.jsonl"
MANIFEST = "manifest.json"
# In the store, the id of the last push.
GENERATION = "generation"
# What is not copied: hidden names, `..` and empty ones, and what belongs to this machine.
LOCAL = re.compile(
    rf"(.*/)?(\.|/|$)|(tune/(?!heartbeat\.txt$)|logs/|mlartifacts/)|{GENERATION}$"
    r"|(.*/)?mlflow\.db[^/]*$|.*\.part$"
)


class Note(BaseModel):
    """What is known of the last copies, stored in `.remote.json`.

    Args:
        folder: the local folder; a copy of it elsewhere is no mirror.
        uri: the URI of the store's folder.
        generation: the id of the last push or pull; None before the first one.
        begun: the id of the push that has begun last.
        copied: local files as they were copied last; None while they are copied back, when
            none of them counts as changed.
    """

    folder: str
    uri: str
    generation: str | None = None
    begun: str | None = None
    copied: dict[str, State] | None = {}

    @classmethod
    def of(cls, path: Path, uri: str = "") -> Self:
        """Return the note of a folder; a new one if there is none, or it was emptied.

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
        kept = {LEDGER, MANIFEST} & (note.copied or {}).keys()
        is_emptied = kept and not any((path / name).exists() for name in kept)
        return new if is_emptied or note.folder != new.folder else note

    def has_progress(self) -> bool:
        """Whether the sweep has gone on in the folder since the last copy."""
        return self.copied is not None and (
            _what_goes_on(self.copied) != _what_goes_on(files_in(Path(self.folder)))
        )

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


def _what_goes_on(states: dict[str, State]) -> dict[str, State]:
    own = ("open", LEDGER, MANIFEST)
    return {name: s for name, s in states.items() if name.partition("/")[0] in own}
