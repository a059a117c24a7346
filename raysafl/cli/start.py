"""Where the installed command `raysafl` starts, and how whatever ends it becomes an exit code."""

import atexit
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import FrameType

from raysafl.core.users_code import is_users_file
from raysafl.storage.paths import StorageError, SweepBusyError

# The exit codes of every command; docs/errors_and_limits.md has the table.
DONE = 0
MISTAKE = 2
BUG = 3
STOPPED = 130
# What the user, a file or a machine has done wrong.
MISTAKES = (ValueError, StorageError, SweepBusyError, OSError, MemoryError)
REPORT = (
    "This is a mistake in raysafl, and none of yours. Please report it in the project's "
    "repository, with the lines above, the command and the experiment file."
)
# After so many searches among newer objects, Python looks for garbage among all objects. By
# default it does so after 10, and a short sweep would spend a second on modules that it needs.
SEARCHES_AMONG_NEWER = 150
# The seconds after which a signal that arrived at a bad moment is sent again.
AGAIN_SECONDS = 0.1
# The folder of llvmlite, whose C code calls its Python when numba compiles or loads a loop.
LLVMLITE = f"{os.sep}llvmlite{os.sep}"


def main() -> None:
    """Run the command line in a process of its own."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # A caller may have the process ignore it, as a shell's background jobs ignore Ctrl-C.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SEARCHES_AMONG_NEWER)
    code = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)

    # What is registered first is called last, when all others have done what they have to do.
    # Python would then take torch apart object by object, for half a second.
    atexit.register(leave)
    try:
        # Imported here, because it takes a second, in which Ctrl-C may be pressed.
        from raysafl.cli.app import main as run_command

        run_command()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt as error:
        code = explain(error, partial(print, file=sys.stderr))


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt: at Ctrl-C, and at the SIGTERM of a batch system.

    In Python's own code for imports it would be lost, or leave a lock taken, for which
    every thread that imports something waits for ever. In what llvmlite's C code calls,
    Python would drop it. So it is put off there.
    """
    files = [inner.f_code.co_filename for inner, _ in traceback.walk_stack(frame)]
    in_import = files[0].startswith("<frozen importlib")
    if not in_import and not any(LLVMLITE in file for file in files):
        raise KeyboardInterrupt
    again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def explain(error: BaseException, say: Callable[[str], None]) -> int:
    """Say in one message why a command ended, unless that is said, and return its exit code.

    A mistake of the user, and a file or a machine that does not do what it should, give
    no traceback. An error in the user's own code gives the lines of that code, and a
    mistake in raysafl itself gives all lines.

    Args:
        error: what the command raised.
        say: prints a message among the errors.
    """
    # typer makes a SystemExit of Ctrl-C.
    code = error.code if isinstance(error, SystemExit) else None
    if isinstance(error, KeyboardInterrupt) or code == STOPPED:
        say("Stopped. The same command goes on where it was.")
        return STOPPED
    if isinstance(error, MISTAKES):
        say(f"Error: {_reason_in_words(error)}")
        return MISTAKE
    if isinstance(error, SystemExit):
        return code if isinstance(code, int) else DONE
    # The steps of the traceback, the line that raised the error last.
    frames = traceback.walk_tb(error.__traceback__)
    places = [(frame.f_code.co_filename, line) for frame, line in frames]
    of_user = [k for k, (file, _) in enumerate(places) if is_users_file(file)]
    shown = traceback.TracebackException.from_exception(error)
    del shown.stack[: min(of_user, default=0)]
    say("".join(shown.format()).rstrip())
    if not of_user:
        say(REPORT)
        return BUG
    file, line = places[of_user[0]]
    say(f"Error: {file}:{line} raises the error above")
    return MISTAKE


def _reason_in_words(error: Exception) -> str:
    """Return what an error says, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__
