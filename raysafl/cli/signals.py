"""What Ctrl-C, SIGTERM and SIGHUP (a closed terminal) do to a command.

Until a command has begun to change something, they end the process at once. Python
alone would raise KeyboardInterrupt in the middle of an import, where it turns into
other errors, or is lost. Inside `working`, they raise KeyboardInterrupt, so that what
the command has opened is closed. Either way the exit code is 128 + the signal's number.
"""

import gc
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP (the terminal was closed)",
}
# The seconds after which a signal that came at a bad moment is sent again.
AGAIN_SECONDS = 0.1
# The file that frames of Python's own import name.
IMPORT = "<frozen importlib"
# The signals that arrived while the command worked, in their order.
_arrived: list[int] = []


def end_at_once() -> None:
    """From now on, let a signal end the process without waiting for anything.

    A signal that the caller has the process ignore (`nohup`, or a shell's background
    job) stays ignored.
    """
    for number in NAMES:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _on_signal)


@contextmanager
def working() -> Iterator[None]:
    """Let a signal raise KeyboardInterrupt in the block, so that the block can clean up.

    Handlers are changed only where `end_at_once` has set its own, and not in a program
    that calls a command as a function.
    """
    numbers = [n for n in NAMES if signal.getsignal(n) is _on_signal]
    for number in numbers:
        signal.signal(number, _interrupt)
    before = sys.unraisablehook
    if numbers:
        sys.unraisablehook = _deliver_again
    try:
        yield
    finally:
        sys.unraisablehook = before
        for number in numbers:
            signal.signal(number, _on_signal)


def first() -> int | None:
    """Return the number of the first signal that arrived while the command worked."""
    return _arrived[0] if _arrived else None


def flush_files() -> None:
    """Write what the user's code has put into files that it has not closed.

    `leave` would lose it; Python itself writes it when it ends.
    """
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    # The class is asked, since an object may claim to be of another one by a method.
    files = [found for found in gc.get_objects() if issubclass(type(found), kinds)]
    # A file of text writes into the file of bytes below it.
    for file in sorted(files, key=lambda file: not isinstance(file, io.TextIOWrapper)):
        with suppress(OSError, ValueError):
            file.flush()


def leave(code: int) -> NoReturn:
    """End the process now, with all that was printed, but without waiting for threads.

    A thread that loads data or waits for a server could otherwise hold up the end, or
    make it a crash.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Say which signal came, and end the process."""
    # A buffered stream may be in the middle of a write, so it is passed by.
    with suppress(OSError):
        os.write(2, f"\nStopped by {NAMES[signal.Signals(number)]}.\n".encode())
    os._exit(128 + number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Remember which signal came, and unwind the command once it imports nothing.

    An error in an import may be lost. In Python's own part of it, it would also leave a lock
    taken, for which every other thread that imports something would wait for ever.
    """
    _arrived.append(number)
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORT):
            _send_again()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def _deliver_again(ignored: "sys.UnraisableHookArgs") -> None:
    """Send a signal again a moment after it came where Python ignores errors.

    That is inside a function that C calls, such as numba's when it reads compiled code.
    """
    if not (_arrived and issubclass(ignored.exc_type, KeyboardInterrupt)):
        sys.__unraisablehook__(ignored)
        return
    _send_again()


def _send_again() -> None:
    """Send the last signal again a moment later."""
    again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), _arrived[-1]))
    again.daemon = True
    again.start()
