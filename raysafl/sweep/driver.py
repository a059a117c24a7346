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
from raysafl.version import __version__

# Seconds until a new file has to be seen on another machine: NFS may be some late.
PATIENCE_SECONDS = 20.0


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

    def check(self) -> None:
        """Check that this machine has the driver's raysafl, and sees the sweep's folder.

        Raises:
            StorageError: it does not.
        """
        here = platform.node()
        if package_digest() != self.package:
            raise StorageError(
                f"{here} has another raysafl ({__version__}, perhaps with files that were "
                f"changed) than {self.host}, where the sweep was started, and might compute "
                "other rows. Install the same on all machines; with a cluster file, "
                "`ray rsync-up FILE --all-nodes` copies it"
            )
        since = time.monotonic()
        while not self.file.is_file():
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise StorageError(
                    f"{here} does not see the folder {self.file.parent.parent} of {self.host}, "
                    "where the sweep was started, and would write its rows where nobody reads "
                    "them. Give --out a folder that all machines see under one path, or an "
                    "object store (s3://...)"
                )
            time.sleep(1.0)


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
