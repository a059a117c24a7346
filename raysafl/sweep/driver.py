"""How a machine of a cluster sees that it works for the process that started a sweep.

That process is the driver. It leaves a file in the sweep's folder. A machine that does not
find it would write its rows where nobody reads them, and a machine with another raysafl
might compute other rows.
"""

import platform
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from raysafl.cluster.provenance import package_digest
from raysafl.storage.files import atomic_write
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.store import Store

# Seconds until a new file has to be seen on another machine: NFS remembers for up to 60
# what a folder held.
PATIENCE_SECONDS = 70.0


@dataclass(frozen=True)
class Driver:
    """The process that started a sweep.

    Args:
        host: its machine.
        file: a file in the sweep's folder that it has made.
        package: the digest of its raysafl.
    """

    host: str
    file: Location
    package: str

    def check_package(self, host: str, package: str) -> None:
        """Check that a machine has the driver's raysafl.

        Args:
            host: the machine.
            package: the digest of its raysafl.

        Raises:
            StorageError: it has another one.
        """
        if package != self.package:
            raise StorageError(
                f"{host} has another raysafl than {self.host}, where the sweep was started "
                "(another version, or files that were changed), and might compute other rows. "
                "Install the same on all machines; with a cluster file, "
                "`ray rsync-up FILE --all-nodes` copies it"
            )

    def check(self) -> None:
        """Check that this machine has the driver's raysafl, and sees the sweep's folder.

        Raises:
            StorageError: it does not.
        """
        here = platform.node()
        self.check_package(here, package_digest())
        since = time.monotonic()
        while not self._is_seen():
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise StorageError(
                    f"{here} does not see the folder {self.file.parent.parent} of {self.host}, "
                    "where the sweep was started, and would write its rows where nobody reads "
                    "them. Give a folder (--out) that all machines see under one path, or an "
                    "object store (s3://...)"
                )
            time.sleep(1.0)

    def _is_seen(self) -> bool:
        # A folder that was made anew, or that others may not read, raises errors.
        with suppress(OSError):
            return self.file.is_file()
        return False


@contextmanager
def announced(store: Store) -> Iterator[Driver]:
    """Let this process be the driver of a sweep for the block."""
    file = store.file("tune", f"{uuid.uuid4().hex}.driver")
    atomic_write(file, b"")
    try:
        yield Driver(platform.node(), file, package_digest())
    finally:
        # A file that is left does no harm.
        with suppress(OSError, StorageError):
            file.unlink(missing_ok=True)
