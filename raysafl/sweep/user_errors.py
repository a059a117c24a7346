"""What an error says to the user: first where it was raised in the user's own code.

An error on a client actor reaches the coordinator as text. So frames are read from the
text of the traceback, wherever the error was raised.
"""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import NamedTuple

from raysafl.core.users_code import OURS, is_users_file
from raysafl.storage.redaction import redacted

FRAME = re.compile(r'^[ |]*File "(.+)", line (\d+),? in (\S+)', re.MULTILINE)
COLOUR = re.compile(r"\x1b\[\d*m")
# Between the traceback of an error and that of its cause, which is above it.
CAUSE = re.compile(
    r"\n(?:The above exception was the direct cause|During handling of the above).*\n"
)
# What to do with a `State`, which nobody may change.
COPY = (
    ": it never changes. Return a changed copy, such as replace(state, w_P=state.w_P - d), "
    "by `from dataclasses import replace`"
)


class Frame(NamedTuple):
    """A line of code in a traceback."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


def describe_error(error: BaseException) -> str:
    """Say what went wrong, and first where in the user's own code that was.

    Args:
        error: the error, with its traceback.

    Returns:
        `round (mine.py:12): KeyError: 'x'`. If no frame of the error is in the user's
        own code: the sentence of a ValueError of raysafl's, with the user's frame of
        its cause, if any; of other errors the last frame, as `OSError: no space left
        (inputs.py:80)`.
    """
    text = _traceback_of(error)
    # What a client actor raised is the cause of Ray's error.
    cause = getattr(error, "cause", None)
    cause = cause if isinstance(cause, BaseException) else error
    what = _writable(f"{type(cause).__name__}: {cause}")
    if isinstance(cause, FrozenInstanceError):
        what += COPY
    # Frames of the error itself, without those of its causes.
    frames = _frames(CAUSE.split(text)[-1])
    users = _users_frames(text)
    direct = [frame for frame in frames if frame in users]
    is_ours = bool(frames) and Path(frames[-1].file).is_relative_to(OURS)
    if isinstance(cause, ValueError) and is_ours and not direct:
        place = f" ({users[-1]})" if users else ""
        return f"{_writable(str(cause))}{place}"
    if not users:
        return f"{what} ({frames[-1]})" if frames else what
    innermost = (direct or users)[-1]
    return f"{innermost.function} ({innermost}): {what}"


def kept_traceback(error: BaseException) -> str:
    """Return the whole traceback for the ledger, with a client actor's, without secrets."""
    return redacted(_traceback_of(error))


@contextmanager
def errors_described() -> Iterator[None]:
    """Turn an error that the user's own code raises in the block into a ValueError.

    Raises:
        ValueError: where the error was raised, and what it is. An error of which no
            frame is in the user's own code is raised as it is.
    """
    try:
        yield
    except Exception as error:
        if _users_frames(_traceback_of(error)):
            raise ValueError(redacted(describe_error(error))) from error
        raise


def innermost_line(dump: str) -> str:
    """Return the innermost line of the user's own code in what `faulthandler` wrote."""
    return next(map(str, _users_frames(dump)), "")


def _traceback_of(error: BaseException) -> str:
    return _writable(COLOUR.sub("", "".join(traceback.format_exception(error))))


def _writable(text: str) -> str:
    """Replace what cannot be written to a file, such as parts of a damaged file name."""
    return text.encode(errors="replace").decode()


def _frames(text: str) -> list[Frame]:
    return [Frame(*found) for found in FRAME.findall(text)]


def _users_frames(text: str) -> list[Frame]:
    """Return the lines of the user's own code: not raysafl's, Python's or a package's."""
    return [frame for frame in _frames(text) if is_users_file(frame.file)]
