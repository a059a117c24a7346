"""The one form of what is measured: a JSON file with `origin` and `measures`.

`origin` says where, when and with which settings was measured. `measures` holds what was
found, by name; what was not measured is not in it. A measure that was taken at another
time than the others of its file has an `origin` of its own.
"""

import datetime
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from raysafl.cluster.provenance import commit
from raysafl.version import __version__

Piece = Mapping[str, Any]
PACKAGES = ("torch", "ray", "numpy")
ROOT = Path(__file__).resolve().parents[1]
# Names the commit in a copy of the repository that has no history, see `benchmarks.bundle`.
COMMIT = "commit.txt"


@dataclass
class Found:
    """What a command has found so far.

    Attributes:
        origin: where, when and with which settings was measured.
        measures: what was found, by name.
    """

    origin: dict[str, Any]
    measures: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> "Found | None":
        """Read a file; return None if there is none, or an empty one."""
        text = file.read_text() if file.is_file() else ""
        return cls(**json.loads(text)) if text.strip() else None

    def go_on(self, file: Path, alike: Sequence[str] = ()) -> "Found":
        """Take over the measures that a file has, if there is one.

        Args:
            file: the file.
            alike: what must be the same in its origin as here.

        Raises:
            ValueError: something else is there.
        """
        old = Found.read(file)
        if old is None:
            return self
        for name in alike:
            theirs, ours = old.origin.get(name), self.origin[name]
            if theirs != ours:
                raise ValueError(
                    f"{file} was measured with {name} {theirs!r}, and here it is "
                    f"{ours!r}: remove the file, or give another --out"
                )
        self.measures = old.measures
        return self

    def save(self, file: Path) -> None:
        """Write a file, which at no time holds a part of it."""
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_text(json.dumps(vars(self), indent=1) + "\n")
        new.replace(file)

    def collect(self, pieces: Iterable[Piece], out: Path | None = None) -> "Found":
        """Take pieces as they are measured; write a file after each, so that none is lost."""
        for piece in pieces:
            merge(self.measures, piece)
            if out is not None:
                self.save(out)
        return self


def merge(found: dict[str, Any], piece: Piece) -> None:
    """Put a piece into what was found: dictionaries are merged, all else is replaced."""
    for name, value in piece.items():
        if isinstance(value, Mapping) and isinstance(found.get(name), dict):
            merge(found[name], value)
        else:
            found[name] = dict(value) if isinstance(value, Mapping) else value


def origin(**settings: Any) -> dict[str, Any]:
    """Describe where a measurement is taken: machine, cores, date, commit and versions.

    Args:
        settings: with what it is taken, such as `repeats`.
    """
    usable = getattr(os, "sched_getaffinity", None)
    memory = psutil.virtual_memory().total / 2**30
    return {
        "machine": f"{_processor()}, {memory:.0f} GiB, {platform.system()}",
        "cores": {
            "logical": psutil.cpu_count(),
            "physical": psutil.cpu_count(logical=False),
            "usable": len(usable(0)) if usable else None,
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {
            "python": platform.python_version(),
            "raysafl": __version__,
            **{name: found for name in PACKAGES if (found := _version(name))},
        },
        "load": round(os.getloadavg()[0], 1),
        **settings,
    }


def _commit() -> str:
    told = ROOT / COMMIT
    return told.read_text() if told.is_file() else commit(ROOT)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.partition(":")[2].strip() for line in lines if "model name" in line
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
