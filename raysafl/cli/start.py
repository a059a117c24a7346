"""Where the installed command `raysafl` starts.

Importing the commands takes a second. This module and what it imports are short, so
that Ctrl-C ends the command plainly from the first moment on.
"""

import atexit
import gc
import sys

from raysafl.cli import output, signals

# After so many searches among newer objects, Python looks for garbage among all objects. By
# default it does so after 10, and a short sweep would spend a second on modules that it needs.
SEARCHES_AMONG_NEWER = 150


def main() -> None:
    """Run the command line in a process of its own."""
    signals.end_at_once()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SEARCHES_AMONG_NEWER)
    out = output.forgive()
    code = 1

    def leave() -> None:
        signals.flush_files()
        signals.leave(code)

    # What is registered first is called last. So libraries and the user's code do what they
    # have to do at the end. Python would then take itself apart, for a second.
    atexit.register(leave)
    # Imported here, when a signal already finds its handler.
    from raysafl.cli.app import main as run_command

    try:
        run_command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    if complaint := output.complaint(out):
        print(complaint, file=sys.stderr)
        code = code or 1
    if signals.first() is not None:
        signals.leave(code)
    sys.exit(code)
