"""A process that is killed instead of changing a file."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raysafl.storage import files


class Crash(BaseException):
    """The process is killed."""


def crash_at(
    number: int, monkeypatch: pytest.MonkeyPatch, kind: type
) -> Callable[[], int]:
    """Raise instead of the operation with this number that changes a file; count them.

    From there on nothing is changed, as the process is dead. It leaves half of a file that
    it was writing.
    """
    count = 0
    # Only a file is seen while it is written, no object of a store.
    write_bytes = Path.write_bytes

    def wrapped(original: Callable[..., object]) -> Callable[..., object]:
        def operation(self: object, *args: object, **kwargs: object) -> object:
            nonlocal count
            if ".lock" not in str(self):
                count += 1
                if count == number and original is write_bytes:
                    original(self, args[0][: len(args[0]) // 2])
                if count >= number:
                    raise Crash
            return original(self, *args, **kwargs)

        return operation

    for name in ("write_bytes", "replace", "unlink"):
        if hasattr(kind, name):
            monkeypatch.setattr(kind, name, wrapped(getattr(kind, name)))
    return lambda: count


def crashed(act: Callable[[], object], number: int, kind: type = Path) -> bool:
    """Do something, and crash at the operation with this number, if there is one."""
    with pytest.MonkeyPatch.context() as patch:
        crash_at(number, patch, kind)
        try:
            act()
        except Crash:
            return True
    return False


def crashes(act: Callable[[], object], kind: type = Path) -> Iterator[bool]:
    """Crash at each operation in turn; True with the last, at which nothing crashes."""
    number, done = 0, False
    while not done:
        number += 1
        done = not crashed(act, number, kind)
        yield done
    assert number > 4


def power_cut(act: Callable[[], object], number: int, rng: random.Random) -> bool:
    """Do something until the power fails at an operation; return whether it failed.

    Afterwards a file whose content was not synced is torn, and each rename and deletion
    after which its folder was not synced has happened or not.
    """
    synced: set[Path] = set()
    torn: set[Path] = set()
    # The files whose names in their folder are not on the disk, and what they were.
    pending: dict[Path, bytes | None] = {}
    sync, replace, unlink = files._sync, Path.replace, Path.unlink

    def note(file: Path) -> None:
        pending.setdefault(file, file.read_bytes() if file.is_file() else None)

    def syncing(path: Path) -> None:
        sync(path)
        synced.add(path)
        for file in [f for f in pending if f.parent == path]:
            del pending[file]

    def replacing(self: Path, target: Path) -> Path:
        note(target)
        if self not in synced:
            torn.add(target)
        return replace(self, target)

    def unlinking(self: Path, missing_ok: bool = False) -> None:
        note(self)
        unlink(self, missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_sync", syncing)
        patch.setattr(Path, "replace", replacing)
        patch.setattr(Path, "unlink", unlinking)
        failed = crashed(act, number)
    if failed:
        for file in torn:
            if file.is_file():
                file.write_bytes(file.read_bytes()[: rng.randrange(20)])
        for file, before in pending.items():
            if rng.random() < 0.5 and ".lock" not in file.name:
                file.unlink(missing_ok=True)
                if before is not None:
                    file.write_bytes(before)
    return failed
