"""Loops that numba compiles when they are first called."""

from collections.abc import Callable
from typing import Any

import numba


def compiled(fastmath: frozenset[str] = frozenset()) -> Callable[[Any], Any]:
    """A decorator: compile for one thread, without the interpreter's lock, and keep it on disk.

    Where no folder can be written to (beside the package, `$NUMBA_CACHE_DIR`, the user's cache),
    each process compiles anew: some seconds.
    """

    def decorate(function: Any) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath)}
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available"
            return numba.njit(**options)(function)

    return decorate
