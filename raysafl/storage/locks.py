"""One writer at a time: a locked file in a folder, or on an object store a sign of life.

Object stores have no locks that a dead holder loses. There a lock is an object that its holder
rewrites every few seconds; one that has not changed for `STALE` seconds is nobody's. Processes of
one machine see each other through a locked file besides, so a killed one is followed at once.
That keeps people from starting a sweep twice; it is no consensus among machines.
"""

import getpass
import hashlib
import json
import os
import platform
import tempfile
import threading
import time
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from raysafl.storage.paths import Location, Remote, StorageError

FRESH = 5.0  # seconds between two signs of life
STALE = 30.0  # seconds without one, and the holder is gone
SETTLE = 1.0  # seconds in which another that took it at the same moment shows


class RemoteLock:
    """A lock in an object store, used like a `FileLock`."""

    def __init__(self, file: Remote) -> None:
        self.file = file
        name = hashlib.sha256(str(file).encode()).hexdigest()[:16]
        self._here = FileLock(_folder() / f"{name}.lock", thread_local=False)
        self._mine = {"machine": _machine(), "host": platform.node(), "pid": os.getpid()}
        self._mine["token"] = uuid.uuid4().hex
        self._over = threading.Event()
        self._beating: threading.Thread | None = None

    def acquire(self, timeout: float = -1) -> None:
        """Take it; wait for its holder, or (0) raise `Timeout` if there is one who lives."""
        self._here.acquire(timeout=timeout)
        try:
            self._take(wait=timeout != 0)
        except BaseException:
            self._here.release()
            raise

    def release(self) -> None:
        """Let it go, if it is held."""
        if self._beating is not None:
            self._over.set()
            self._beating.join()
            self._beating = None
            try:
                if (self._holder() or {}).get("token") == self._mine["token"]:
                    self.file.unlink(missing_ok=True)
            except StorageError:
                pass  # it gets stale
        self._here.release()

    def __enter__(self) -> "RemoteLock":
        self.acquire(timeout=0)
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _take(self, wait: bool) -> None:
        seen, since = self._holder(), time.monotonic()
        while seen and seen.get("machine") != self._mine["machine"]:
            time.sleep(1.0)
            now = self._holder()
            if now != seen:
                if now and not wait:
                    raise Timeout(str(self.file))
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > STALE:
                break
        self._beat(0)
        if not wait:
            time.sleep(SETTLE)
            if (self._holder() or {}).get("token") != self._mine["token"]:
                raise Timeout(str(self.file))
        self._over.clear()
        self._beating = threading.Thread(target=self._live, name="lock", daemon=True)
        self._beating.start()

    def _live(self) -> None:
        beats = 0
        while not self._over.wait(FRESH):
            beats += 1
            try:
                self._beat(beats)
            except StorageError:
                continue  # whoever writes results meets it too, and says so

    def _beat(self, beats: int) -> None:
        self.file.write_bytes(json.dumps(self._mine | {"beats": beats}).encode())

    def _holder(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self.file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            if isinstance(error, StorageError):
                raise
            return None  # not a lock of ours
        return found if isinstance(found, dict) else None


def lock(file: Location) -> FileLock | RemoteLock:
    """The lock that lies at this place."""
    if isinstance(file, Remote):
        return RemoteLock(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(file)


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"raysafl-{getpass.getuser()}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@lru_cache
def _machine() -> str:
    """A name for all processes that share the folder of locked files, and no others."""
    file = _folder() / "machine"
    with FileLock(_folder() / "machine.lock"):
        if not file.is_file():
            file.write_text(uuid.uuid4().hex)
        return file.read_text()
