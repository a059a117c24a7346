"""Loops that numba compiles when they are first called."""

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import numba
from filelock import FileLock

DAMAGED = (OSError, EOFError, pickle.UnpicklingError)


def compiled(fastmath: frozenset[str] = frozenset(), part: bool = False) -> Callable[[Any], Any]:
    """A decorator: compile for one thread, without the interpreter's lock, and keep it on disk.

    A `part` becomes part of the compiled loops that call it. Otherwise the process that compiles
    would call a copy which is optimised on its own, and one that loads the loop from disk the copy
    inside it: where `fastmath` lets sums be reordered, their last bits differ.

    Where no folder can be written to (beside the package, `$NUMBA_CACHE_DIR`, the user's cache),
    each process compiles anew: some seconds.
    """

    def decorate(function: Any) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath)}
        if part:
            return numba.njit(inline="always", **options)(function)
        try:
            loop = numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available"
            return numba.njit(**options)(function)
        _guard(loop._cache._cache_file)
        return loop

    return decorate


def _guard(file: Any) -> None:
    """Let one process write at a time, and what cannot be read or written cost time alone.

    numba does neither: two processes that keep different signatures at once take the same name
    for both, and a full disk, or a file that was cut, would end the run.
    """
    save, load = file.save, file.load

    def locked(key: Any, data: Any) -> None:
        with contextlib.suppress(*DAMAGED), FileLock(f"{file._index_path}.lock"):
            save(key, data)

    def safe(key: Any) -> Any:
        try:
            return load(key)
        except DAMAGED:
            with contextlib.suppress(OSError):
                file.flush()
            return None

    file.save, file.load = locked, safe
