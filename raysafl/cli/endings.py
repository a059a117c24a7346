"""Whatever ends a command becomes one message and one exit code."""

import traceback
from collections.abc import Callable

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
