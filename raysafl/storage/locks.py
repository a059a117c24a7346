"""Whether a process holds the lock of a folder.

A lock is a locked file, which the system releases when its process dies. (On storage without
flock, filelock writes a file that names the process, and deletes it; of a process that is
killed, the file stays until the next one takes the lock.)
"""

import fcntl
from pathlib import Path


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
        # Where there is no flock, the lock is a file that names its holder while it is held.
        return bool(file.read_bytes())
    return False
