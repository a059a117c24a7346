"""Where the installed command `raysafl` starts."""

import atexit
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from types import FrameType

from raysafl.cli.endings import explain

# After so many searches among newer objects, Python looks for garbage among all objects. By
# default it does so after 10, and a short sweep would spend a second on modules that it needs.
SEARCHES_AMONG_NEWER = 150
# The seconds after which a signal that came at a bad moment is sent again.
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
        # Imported here, because it takes a second, in which Ctrl-C may come.
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
    if not is_lost_in(frame):
        raise KeyboardInterrupt
    again = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def is_lost_in(frame: FrameType | None) -> bool:
    """Whether an exception that is raised in this frame would be lost."""
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return True
    while frame is not None:
        if LLVMLITE in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
