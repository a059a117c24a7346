"""Loops that numba compiles when they are first called."""

from collections.abc import Callable
from typing import Any

import numba


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
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # "no locator available"
            return numba.njit(**options)(function)

    return decorate
