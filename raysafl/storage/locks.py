"""Locks, so that one process at a time writes to a folder or an object store.

In a folder a lock is a locked file, which the system releases when its process dies.
(On storage without flock, filelock writes a file that names the process, and deletes it.)
Object stores offer no lock that is released when its holder dies. There a lock is an
object that its holder writes again every `BEAT_SECONDS`; if it has not changed for
`STALE_SECONDS`, another process may take it. Processes of one machine use a locked file
besides, so a killed holder is succeeded at once.

This keeps people from starting a sweep twice. It is no consensus among machines: one
that sleeps for longer than `STALE_SECONDS` may write when it wakes.
"""

import fcntl
import hashlib
import json
import os
import platform
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from raysafl.storage.paths import Location, Remote, StorageError

# Between two writes of a lock by its holder.
BEAT_SECONDS = 5.0
# Without a change of the lock, until its holder is taken for dead.
STALE_SECONDS = 30.0
# Until the lock is read again, to see whether another process took it too.
RACE_SECONDS = 1.0


class RemoteLock:
    """A lock in an object store, used like a `FileLock`.

    Args:
        file: the object that is the lock.
    """

    def __init__(self, file: Remote) -> None:
        self.file = file
        name = hashlib.sha256(str(file).encode()).hexdigest()[:16]
        self._machine_lock = FileLock(_folder() / f"{name}.lock", thread_local=False)
        self._content = {
            "machine": _machine_id(),
            "host": platform.node(),
            "pid": os.getpid(),
        }
        # No other holder has the same.
        self._content["token"] = uuid.uuid4().hex
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self, timeout: float = -1) -> None:
        """Take the lock.

        Args:
            timeout: with 0 an error is raised if another process has the lock; with a
                negative number its release is waited for.

        Raises:
            filelock.Timeout: another process has the lock.
        """
        self._machine_lock.acquire(timeout=timeout)
        try:
            self._take(wait=timeout != 0)
        except BaseException:
            self._machine_lock.release()
            raise

    def release(self) -> None:
        """Release the lock, if it is held."""
        if self._thread is not None:
            self._released.set()
            self._thread.join()
            self._thread = None
            try:
                if (self._holder() or {}).get("token") == self._content["token"]:
                    self.file.unlink(missing_ok=True)
            except StorageError:
                # The lock becomes stale, and the next holder takes it then.
                pass
        self._machine_lock.release()

    def _take(self, wait: bool) -> None:
        """Write the lock's object, once no living process of another machine holds it."""
        seen = self._holder()
        since = time.monotonic()
        while seen and seen.get("machine") != self._content["machine"]:
            time.sleep(1.0)
            now = self._holder()
            if now != seen:
                if now and not wait:
                    raise Timeout(str(self.file))
                seen = now
                since = time.monotonic()
            elif time.monotonic() - since > STALE_SECONDS:
                break
        self._write(0)
        if not wait:
            self._outlast()
        self._released.clear()
        self._thread = threading.Thread(
            target=self._keep_writing, name="lock", daemon=True
        )
        self._thread.start()

    def _outlast(self) -> None:
        """See that no other process took the lock at the same moment; the last writer has it.

        While this process holds the machine's locked file, a later write from the same
        machine comes from a process that was killed while the store received it. It is
        overwritten.

        Raises:
            filelock.Timeout: a process of another machine has the lock.
        """
        while True:
            time.sleep(RACE_SECONDS)
            holder = self._holder() or {}
            if holder.get("token") == self._content["token"]:
                return
            if holder.get("machine") != self._content["machine"]:
                raise Timeout(str(self.file))
            self._write(0)

    def _keep_writing(self) -> None:
        beats = 0
        while not self._released.wait(BEAT_SECONDS):
            beats += 1
            try:
                self._write(beats)
            except StorageError:
                # Writing results fails too, and the sweep ends with the reason.
                continue

    def _write(self, beats: int) -> None:
        self.file.write_bytes(json.dumps(self._content | {"beats": beats}).encode())

    def _holder(self) -> dict[str, Any] | None:
        """Return the content of the lock's object; None if nobody holds it."""
        try:
            content = json.loads(self.file.read_bytes())
        # It may be there and not be written by a lock.
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None


def lock(file: Location) -> FileLock | RemoteLock:
    """Return the lock that is this file, which need not exist yet."""
    if isinstance(file, Remote):
        return RemoteLock(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file)


def is_held(file: Location) -> bool:
    """Whether a living process has the lock that is this file."""
    try:
        if isinstance(file, Remote):
            return time.time() - file.stat().st_mtime < STALE_SECONDS
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


def _folder() -> Path:
    """Return the folder of this machine in which the user's locked files are."""
    folder = Path(tempfile.gettempdir()) / f"raysafl-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@lru_cache
def _machine_id() -> str:
    """Return an id that is shared by exactly the processes that see the same locks."""
    file = _folder() / "machine"
    with FileLock(_folder() / "machine.lock"):
        # A full disk leaves an empty file.
        if not file.is_file() or not file.read_text():
            file.write_text(uuid.uuid4().hex)
        return file.read_text()
