"""Compile Python loops with numba, and keep the machine code on disk.

This is the only file that touches private parts of numba: the object that reads and
writes the cache of a compiled function. `pyproject.toml` bounds numba's version for its
sake.
"""

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import numba
from filelock import FileLock

# What numba raises on a cache that is cut short, damaged, or not to be read or written.
DAMAGED = (OSError, EOFError, pickle.UnpicklingError)


def compiled(
    fastmath: frozenset[str] = frozenset(), part: bool = False
) -> Callable[[Any], Any]:
    """Return a decorator that compiles a function when it is first called.

    The function runs in one thread and releases the interpreter's lock, so that several
    threads can run it at the same time. Its machine code is kept on disk: beside the
    package, in `$NUMBA_CACHE_DIR`, or in the user's cache folder. Where none of these
    can be written to, each process compiles again, which takes some seconds.

    Args:
        fastmath: what LLVM may do to float arithmetic (its fast-math flags). Without
            any, results are those of the source, operation by operation.
        part: whether the function is only called by other compiled functions. It is
            then copied into each of them. Compiled on its own it would exist twice: the
            process that compiles would call a copy which LLVM optimised alone, while a
            process that loads the caller from disk would run the copy inside the
            caller. Where `fastmath` lets sums be reordered, the two differ in their
            last bits.
    """

    def decorate(function: Any) -> Any:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath)}
        if part:
            return numba.njit(inline="always", **options)(function)

        try:
            loop = numba.njit(cache=True, **options)(function)
            _guard(loop._cache._cache_file)
        # Numba found no folder that it can write to, or this version keeps its cache otherwise.
        except (RuntimeError, AttributeError):
            return numba.njit(**options)(function)
        return loop

    return decorate


def _guard(file: Any) -> None:
    """Let one process write the cache at a time, and survive a damaged cache.

    numba does neither. Two processes that save different signatures of a function at
    the same time choose the same file name for both. A full disk, or a file that was
    cut short, would end the run; with the guard it costs only the time to compile
    again.

    The change is made to this one object, which belongs to one compiled function.
    """
    save = file.save
    load = file.load

    def locked_save(key: Any, data: Any) -> None:
        with contextlib.suppress(*DAMAGED), FileLock(f"{file._index_path}.lock"):
            save(key, data)

    def tolerant_load(key: Any) -> Any:
        try:
            return load(key)
        except DAMAGED:
            with contextlib.suppress(OSError):
                file.flush()
            return None

    file.save = locked_save
    file.load = tolerant_load
