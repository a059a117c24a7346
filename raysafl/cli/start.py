"""Where the installed command `raysafl` starts."""

import gc
import signal
import sys
from functools import partial

from raysafl.cli.endings import explain

# After so many searches among newer objects, Python looks for garbage among all objects. By
# default it does so after 10, and a short sweep would spend a second on modules that it needs.
SEARCHES_AMONG_NEWER = 150


def main() -> None:
    """Run the command line in a process of its own."""
    # A batch system's SIGTERM is a Ctrl-C that nobody pressed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, SEARCHES_AMONG_NEWER)
    try:
        # Imported here, because it takes a second, in which Ctrl-C may come.
        from raysafl.cli.app import main as run_command

        run_command()
    except KeyboardInterrupt as error:
        sys.exit(explain(error, partial(print, file=sys.stderr)))
