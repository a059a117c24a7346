"""A process that is killed instead of changing a file."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raysafl.storage import paths


class Crash(BaseException):
    """The process is killed."""


def crash_at(
    number: int, monkeypatch: pytest.MonkeyPatch, kind: type = Path
) -> Callable[[], int]:
    """Raise instead of the operation with this number that changes a file; count them.

    From there on nothing is changed, as the process is dead. It leaves half of what it
    was writing.
    """
    count = 0
    write_bytes, append = Path.write_bytes, paths._append

    def wrapped(original: Callable[..., object]) -> Callable[..., object]:
        def operation(self: Any, *args: Any, **kwargs: Any) -> object:
            nonlocal count
            if ".lock" not in str(self):
                count += 1
                if count == number and original is write_bytes:
                    original(self, args[0][: len(args[0]) // 2])
                if count == number and original is append:
                    self.write(args[0][: len(args[0]) // 2])
                if count >= number:
                    raise Crash
            return original(self, *args, **kwargs)

        return operation

    for name in ("write_bytes", "replace", "unlink"):
        monkeypatch.setattr(kind, name, wrapped(getattr(kind, name)))
    monkeypatch.setattr(paths, "_append", wrapped(append))
    return lambda: count


def crashed(act: Callable[[], object], number: int) -> bool:
    """Do something, and crash at the operation with this number, if there is one."""
    with pytest.MonkeyPatch.context() as patch:
        crash_at(number, patch)
        try:
            act()
        except Crash:
            return True
    return False


def crashes(act: Callable[[int], object]) -> Iterator[int]:
    """Crash at each operation in turn, whose number the act is given.

    With the last number nothing crashes.
    """
    number, done = 0, False
    while not done:
        number += 1
        done = not crashed(partial(act, number), number)
        yield number
    assert number > 3


class Disk:
    """What is not on the disk yet: names and contents that nobody has synced."""

    def __init__(self) -> None:
        self.synced: set[Path] = set()
        self.torn: set[Path] = set()
        # Files that were renamed or deleted, and what they were before.
        self.pending: dict[Path, bytes | None] = {}

    def note(self, file: Path) -> None:
        """Take note of a file that is about to be replaced or deleted."""
        there = file.is_file() and ".lock" not in file.name
        self.pending.setdefault(file, file.read_bytes() if there else None)

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


def power_cut(act: Callable[[], object], number: int, rng: random.Random) -> bool:
    """Do something until the power fails at an operation; return whether it failed."""
    disk = Disk()
    replace, unlink = Path.replace, Path.unlink

    def replacing(self: Path, target: Path) -> Path:
        disk.note(target)
        if self not in disk.synced:
            disk.torn.add(target)
        return replace(self, target)

    def unlinking(self: Path, missing_ok: bool = False) -> None:
        disk.note(self)
        unlink(self, missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "_sync", disk.sync)
        patch.setattr(Path, "replace", replacing)
        patch.setattr(Path, "unlink", unlinking)
        failed = crashed(act, number)
    if failed:
        disk.fail(rng)
    return failed
