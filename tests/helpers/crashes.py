"""A process that is killed instead of changing a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


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
