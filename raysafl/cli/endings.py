"""Whatever ends a command becomes one message and one exit code."""

import signal
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

from raysafl.cli import signals
from raysafl.core.users_code import is_users_file
from raysafl.storage.paths import StorageError, SweepBusyError

# The exit codes of every command; docs/errors_and_limits.md has the table.
DONE = 0
NOT_ALL_WELL = 1
MISTAKE = 2
BUG = 3
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
    if _was_interrupted(error) or signals.first() is not None:
        number = signal.Signals(signals.first() or signal.SIGINT)
        # A command that is meant to run until Ctrl-C has said that it ends.
        if not isinstance(error, SystemExit) or error.code:
            stopped = f"Stopped by {signals.NAMES[number]}"
            say(f"{stopped}. The same command goes on where it was.")
        return 128 + number
    if isinstance(error, SystemExit):
        return _code_of(error, say)
    if isinstance(error, MISTAKES):
        say(f"Error: {_reason_in_words(error)}")
        return MISTAKE
    theirs = next((t for t in _steps(error.__traceback__) if _is_theirs(t)), None)
    lines = traceback.format_exception(
        type(error), error, theirs or error.__traceback__
    )
    say("".join(lines).rstrip())
    if theirs is not None:
        file = theirs.tb_frame.f_code.co_filename
        say(f"Error: {file}:{theirs.tb_lineno} raises the error above")
        return MISTAKE
    say(REPORT)
    return BUG


def _code_of(end: SystemExit, say: Callable[[str], None]) -> int:
    """Return the exit code of a command that ended itself, or that the user's code ended."""
    *_, last = _steps(end.__traceback__)
    if not _is_theirs(last):
        return end.code if isinstance(end.code, int) else DONE
    file = last.tb_frame.f_code.co_filename
    say(
        f"Error: {file}:{last.tb_lineno} ends the program (SystemExit: {end.code}). Code "
        "that a sweep uses must return, or raise another error"
    )
    return MISTAKE


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an error is KeyboardInterrupt, or what typer makes of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the steps of a traceback, the line that raised the error last."""
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_theirs(step: TracebackType) -> bool:
    return is_users_file(step.tb_frame.f_code.co_filename)


def _reason_in_words(error: Exception) -> str:
    """Return what an error says, with the file that it is about."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__
