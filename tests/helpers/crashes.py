"""Operations on files that fail, are killed, or lose their power."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from raysafl.storage import paths


class Crash(BaseException):
    """The process is killed."""


class Disk:
    """What is not on the disk yet: names and contents that nobody has synced."""

    def __init__(self) -> None:
        self.synced: set[Path] = set()
        self.torn: set[Path] = set()
        # Files that were renamed or deleted, and what they were before.
        self.pending: dict[Path, bytes | None] = {}

    def note(self, file: Path, missing_ok: bool = True) -> None:
        """Take note of a file that is about to be made, replaced or deleted."""
        there = file.is_file() and ".lock" not in file.name
        self.pending.setdefault(file, file.read_bytes() if there else None)

    def replaced(self, new: Path, target: Path) -> None:
        """Take note of a file that is about to take the place of another one."""
        self.note(target)
        if new not in self.synced:
            self.torn.add(target)

    def sync(self, path: Path) -> None:
        """Put a file's content, or the names in a folder, on the disk."""
        self.synced.add(path)
        kept = {f: old for f, old in self.pending.items() if f.parent != path}
        self.pending = kept

    def fail(self, rng: random.Random) -> None:
        """Tear what was not synced, and undo some of the renames and deletions."""
        for file in filter(Path.is_file, self.torn):
            file.write_bytes(file.read_bytes()[: rng.randrange(20)])
        for file, before in self.pending.items():
            if rng.random() < 0.5 and ".lock" not in file.name:
                file.unlink(missing_ok=True)
                if before is not None:
                    file.write_bytes(before)


class Faults:
    """Raises an error instead of the operation on a file with some number.

    Half of what was to be written is there. After a crash nothing is changed any more.

    Args:
        number: the number of the operation, from 1.
        error: the error; None for a crash.
        syncs: whether what changes no content counts, too.
    """

    def __init__(
        self, number: int, error: OSError | None = None, syncs: bool = True
    ) -> None:
        self.left = number
        self.error = error or Crash()
        self.syncs = syncs
        self.disk = Disk()
        # The bytes of the ledger that a power cut leaves; None for all of them.
        self.safe: int | None = None

    def tick(self, begun: Callable[[], object] = lambda: None) -> None:
        """Count an operation; raise the error instead, when it has begun."""
        self.left -= 1
        if self.left == 0:
            begun()
        if self.left == 0 or (self.left < 0 and isinstance(self.error, Crash)):
            raise self.error

    def counted(
        self, original: Callable[..., object], tell: Callable[..., object]
    ) -> Callable[..., object]:
        """Return an operation that is counted before the disk is told of it."""

        def operation(path: Path, *rest: Any, **named: Any) -> object:
            if ".lock" not in path.name:
                self.tick()
            tell(path, *rest)
            return original(path, *rest, **named)

        return operation

    def sync(self, what: Path | int) -> None:
        """Put a file or the names in a folder on the disk, or the ledger, by its number."""
        if self.syncs:
            self.tick()
        if isinstance(what, Path):
            self.disk.sync(what)
        else:
            self.safe = None

    @contextmanager
    def happen(self) -> Iterator[None]:
        """Let operations fail while the block runs."""
        opened, written, disk = Path.open, Path.write_bytes, self.disk

        def opening(path: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
            if mode != "a+b":
                return opened(path, mode, *rest, **named)
            if not path.exists():
                disk.note(path)
            return Appended(path, self)

        def write(path: Path, content: bytes) -> int:
            self.tick(lambda: written(path, content[: len(content) // 2]))
            return written(path, content)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "write_bytes", write)
            patch.setattr(Path, "open", opening)
            patch.setattr(Path, "replace", self.counted(Path.replace, disk.replaced))
            patch.setattr(Path, "unlink", self.counted(Path.unlink, disk.note))
            patch.setattr(paths, "_sync", self.sync)
            patch.setattr(os, "fsync", self.sync)
            yield


class Appended(FileIO):
    """The ledger, opened to append lines to it."""

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path, "a+b")
        self.faults = faults

    def truncate(self, size: int | None = None) -> int:
        if self.faults.syncs:
            self.faults.tick()
        return super().truncate(size)

    def write(self, lines: Any) -> int:
        self.faults.safe = os.fstat(self.fileno()).st_size
        self.faults.tick(lambda: FileIO.write(self, lines[: len(lines) // 2]))
        return super().write(lines)


def died(act: Callable[[], object], number: int, syncs: bool = True) -> bool:
    """Do something, and die at the operation with this number, if there is one."""
    with suppress(Crash), Faults(number, syncs=syncs).happen():
        act()
        return False
    return True


def crashes(act: Callable[[int], object]) -> Iterator[int]:
    """Die at each change of a file in turn, whose number the act is given.

    With the last number it does not die.
    """
    number, is_dead = 0, True
    while is_dead:
        number += 1
        is_dead = died(partial(act, number), number, syncs=False)
        yield number
    assert number > 3


def lost_power(act: Callable[[], object], number: int, seed: int, ledger: Path) -> bool:
    """Do something until the power fails at an operation, at last when all is done.

    What was not synced is lost or torn, or zeros are in its place.

    Returns:
        Whether it failed before all was done.
    """
    faults, rng = Faults(number), random.Random(f"{seed} {number}")
    with suppress(Crash), faults.happen():
        act()
    faults.disk.fail(rng)
    if faults.safe is not None and ledger.exists():
        content = ledger.read_bytes()
        lost = content[faults.safe :]
        kept = rng.randrange(len(lost) + 1)
        rest = lost[:kept] if rng.random() < 0.5 else bytes(kept)
        ledger.write_bytes(content[: faults.safe] + rest)
    return faults.left <= 0
