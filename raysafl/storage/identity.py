"""The identity of a sweep's folder, by which MLflow tells equally named sweeps apart.

`.folder` in the sweep's folder holds an id that is drawn once. A copy of the folder
holds the same id, so where the folder is, and which file on which disk holds the id,
belong to the identity too.
"""

import platform
import re
import secrets
from dataclasses import dataclass

from raysafl.storage.files import atomic_write
from raysafl.storage.paths import Location, Remote
from raysafl.storage.store import Store

NAME = ".folder"


@dataclass(frozen=True)
class Identity:
    """Which folder this is.

    Args:
        id: 32 hexadecimal digits, drawn at random; equal in copies of the folder.
        place: the machine and the path of the folder, or its URI.
        file: the number and the time (in seconds) of the file that holds the id. They
            stay when the folder is renamed or moved on its disk, and are the same on
            every machine that mounts the disk; a copy has others. Empty in an object
            store.
    """

    id: str
    place: str
    file: str


def identity(store: Store) -> Identity:
    """Return the identity of a sweep's folder; draw its id if it has none."""
    path = store.file(NAME)
    try:
        text = path.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        text = ""
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        return renewed(store)
    return _identity_in_file(path, text)


def renewed(store: Store) -> Identity:
    """Give a sweep's folder another id, and return its identity."""
    drawn = secrets.token_hex(16)
    path = store.file(NAME)
    atomic_write(path, drawn.encode())
    return _identity_in_file(path, drawn)


def _identity_in_file(path: Location, text: str) -> Identity:
    """Return the identity of the folder whose id a file holds."""
    if isinstance(path, Remote):
        return Identity(text, str(path.parent), "")
    stat = path.stat()
    place = f"{platform.node()}:{path.parent.resolve()}"
    return Identity(text, place, f"{stat.st_ino}-{int(stat.st_mtime)}")
