"""Output that cannot be written does not end a command: a full disk, a closed pipe.

The rows of a sweep matter more than the lines on the screen, so a command goes on
without them. Its end tells what happened.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO


class Forgiving(io.FileIO):
    """A file that drops what cannot be written, and remembers the first reason.

    Args:
        number: the number of an open file, which stays open.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        """Write what can be written, and say that all of it was."""
        try:
            return super().write(content)
        except OSError as error:
            self.failure = self.failure or error
            return len(memoryview(content).cast("B"))


def forgive() -> Forgiving | None:
    """Make standard output and error output forgiving.

    Returns:
        The file below the standard output; None if there is none.
    """
    out = _file_below(sys.stdout)
    err = _file_below(sys.stderr)
    sys.stdout = _text_stream(out, sys.stdout)
    sys.stderr = _text_stream(err, sys.stderr)
    return out


def complaint(out: Forgiving | None) -> str:
    """Return why output was lost, as a sentence; empty if it was not, or if the reader left.

    A reader such as `head` ends when it has seen enough, so a closed pipe is no news.
    """
    if out is None or out.failure is None or out.failure.errno == errno.EPIPE:
        return ""
    return f"Error: the output could not be written: {out.failure.strerror}"


def _file_below(stream: TextIO | None) -> Forgiving | None:
    """Return the file below a stream; None if the process was started without it."""
    return None if stream is None else Forgiving(stream.fileno())


def _text_stream(file: Forgiving | None, before: TextIO | None) -> TextIO:
    """Return a stream of text like the one before, on another file."""
    if file is None or before is None:
        return open(os.devnull, "w")
    before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=True,
    )
