"""provenance."""

import platform
import subprocess
from pathlib import Path

from raysafl.version import __version__


def provenance() -> dict[str, str]:
    """With what and where a run is made."""
    from importlib.metadata import version

    names = {name: version(name) for name in ("torch", "ray")}
    return {
        "python": platform.python_version(),
        "raysafl": __version__,
        "host": platform.node(),
        **names,
    }


def commit(folder: Path | None = None) -> str:
    """The git commit of a folder (default: here), `-dirty` if changed; empty without git."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()
