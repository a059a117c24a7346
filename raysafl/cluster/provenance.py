"""With which versions, and on which host, a run is made."""

import hashlib
import importlib.metadata
import platform
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from raysafl.version import __version__

# How long git may take: of a large repository on a network's disk it reads all files.
GIT_SECONDS = 10.0


def provenance() -> dict[str, str]:
    """Return the versions of Python, raysafl, NumPy, torch and Ray, and this host's name.

    NumPy draws partitions and cohorts, and a later version may draw others (NEP 19).
    The versions of NumPy, torch and Ray are read from their metadata, since importing them
    would take seconds. One that is not installed is left out.
    """
    versions = {
        "python": platform.python_version(),
        "raysafl": __version__,
        "host": platform.node(),
    }
    for name in ("numpy", "torch", "ray"):
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@lru_cache
def package_digest() -> str:
    """Return a SHA-256 of raysafl's version and of its source files, as they are here."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256(__version__.encode())
    # Editors put links to nothing beside a file that is open.
    for file in sorted(path for path in folder.rglob("*.py") if path.is_file()):
        digest.update(f"{file.relative_to(folder)}\n".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def commit(folder: Path | None = None) -> str:
    """Return a folder's git commit in 12 digits, with "-dirty" if files were changed.

    Args:
        folder: a folder in a git repository; None is the current folder.

    Returns:
        An empty string outside of a repository, without git, or if git takes longer
        than ten seconds.
    """
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


class OtherPackageError(RuntimeError):
    """A machine of a cluster has another raysafl than the one that started the sweep."""


def check_package(host: str, package: str, expected: str) -> None:
    """Check that a machine has the raysafl with which the sweep was started.

    Args:
        host: the machine.
        package: the digest of its raysafl.
        expected: the digest of the raysafl that started the sweep.

    Raises:
        OtherPackageError: it has another one.
    """
    if package != expected:
        raise OtherPackageError(
            f"{host} has another raysafl than the machine that starts sweeps (another "
            "version, or files that were changed), and might compute other rows. "
            "Install the same on all machines; with a cluster file, "
            "`ray rsync-up FILE --all-nodes` copies it"
        )
