"""Whether a process holds the lock of a folder.

A lock is a locked file, which the system releases when its process dies. (On storage without
flock, filelock writes a file that names the process, and deletes it.)
"""

import fcntl
import platform
from contextlib import suppress
from pathlib import Path

import psutil


def is_held(file: Path) -> bool:
    """Whether a living process has the lock that is this file."""
    try:
        # The folder may be somebody else's, so the file is opened for reading alone.
        with file.open("rb") as probe:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        # Where there is no flock, the lock is a file that names its holder.
        return _names_a_holder(file)
    return False


def _names_a_holder(file: Path) -> bool:
    """Whether a lock of filelock's for storage without flock names a living process."""
    with suppress(OSError, ValueError):
        pid, host, *_ = file.read_text().split()
        return host != platform.node() or psutil.pid_exists(int(pid))
    return False
