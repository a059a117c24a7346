"""What is watched while a sweep runs: the driver's memory, and how busy the actors are.

Both watchers are threads of the driver's process that look now and then. They take some
tenths of a percent of one core.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.processes import repeatedly
from raysafl.storage.ledger import CELL

# How the title of a client actor's process begins; a method that runs follows.
TITLE = "ray::Clients"
# The methods that are called in the rounds of a pack.
METHODS = (f"{TITLE}.train", f"{TITLE}.sums")
# Seconds between two looks at known actors, at the ledger, and for new actors, which
# takes some milliseconds.
ACTOR_SECONDS = 0.05
LEDGER_SECONDS = 0.25
SEARCH_SECONDS = 1.0


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    return float(psutil.Process().memory_info().rss / 2**20)


@contextmanager
def driver_memory(folder: Path, cells: int) -> Iterator[dict[str, int]]:
    """Note this process's resident memory at three moments while the block runs.

    Args:
        folder: the folder of the sweep.
        cells: how many cells the sweep has.

    Yields:
        MB after a quarter of the cells have ended, after all have ended (each at the
        next look after they were written), and at the end of the block.
    """
    found = dict[str, int]()
    ended = EndedCells(folder)

    def note(moment: str) -> None:
        found.setdefault(moment, round(psutil.Process().memory_info().rss / 1e6))

    def memory() -> None:
        count = ended.count()
        if count >= cells / 4:
            note("quarter")
        if count >= cells:
            note("trials")

    with repeatedly(memory, LEDGER_SECONDS):
        yield found
    for moment in ("quarter", "trials", "report"):
        note(moment)


class EndedCells:
    """Counts the cells of a sweep that have ended, and reads each line of the ledger once."""

    def __init__(self, folder: Path) -> None:
        self._ledger = folder / "ledger.jsonl"
        self._read = 0
        self._cells: set[bytes] = set()

    def count(self) -> int:
        """Return how many cells have an entry."""
        with suppress(FileNotFoundError), self._ledger.open("rb") as file:
            # The driver has written it anew, in fewer lines.
            if file.seek(0, os.SEEK_END) < self._read:
                self._read = 0
            file.seek(self._read)
            lines = file.read()
            self._read += lines.rfind(b"\n") + 1
            self._cells.update(CELL.findall(lines))
        return len(self._cells)


@dataclass
class Busy:
    """Which share of the time client actors compute, between their first and last round.

    The first round begins when an actor is first seen in a method that trains, and the
    last one ends when an actor is last seen in a method that trains or evaluates. What
    an actor computed before its own first round, such as imports, does not count.

    Args:
        actors: how many actors there are at the same time.
        first: the time of the first look in a round; None before it.
        last: the time of the last look in a round so far.
    """

    actors: int
    first: float | None = None
    last: float = 0.0
    # Processor seconds of each actor, by process id: at its first look in a round, at
    # the latest look, and at the latest one that was in a round of any actor.
    _before: dict[int, float] = field(default_factory=dict)
    _now: dict[int, float] = field(default_factory=dict)
    _after: dict[int, float] = field(default_factory=dict)

    def add(self, when: float, look: Mapping[int, tuple[str, float]]) -> None:
        """Take a look at the actors.

        Args:
            when: its time, in seconds of a monotonic clock.
            look: the title and the processor seconds of each actor, by process id.
        """
        for process, (title, seconds) in look.items():
            if title.startswith(METHODS):
                self._before.setdefault(process, seconds)
            if process in self._before:
                self._now[process] = seconds
        if any(title.startswith(METHODS) for title, _ in look.values()):
            self.first = when if self.first is None else self.first
            self.last = when
            self._after = dict(self._now)

    @property
    def seconds(self) -> float:
        """The time between the first and the last round."""
        return self.last - (self.first or self.last)

    @property
    def share(self) -> float | None:
        """The processor time of the actors over the time that they had, if any."""
        if not self.seconds:
            return None
        used = [after - self._before[i] for i, after in self._after.items()]
        return sum(used) / (self.seconds * self.actors)


@contextmanager
def watched_actors(actors: int) -> Iterator[Busy]:
    """Watch so many client actors below this process while the block runs."""
    busy = Busy(actors)
    known: list[psutil.Process] = []
    searched = 0.0

    def actors_busy() -> None:
        nonlocal searched, known
        if time.monotonic() - searched > SEARCH_SECONDS:
            known = client_actors()
            searched = time.monotonic()
        look: dict[int, tuple[str, float]] = {}
        for process in known:
            with suppress(psutil.Error):
                times = process.cpu_times()
                look[process.pid] = (_title(process), times.user + times.system)
        busy.add(time.monotonic(), look)

    with repeatedly(actors_busy, ACTOR_SECONDS):
        yield busy


def client_actors() -> list[psutil.Process]:
    """Return the processes of the client actors below this process."""
    below = psutil.Process().children(recursive=True)
    return [process for process in below if _title(process).startswith(TITLE)]


def _title(process: psutil.Process) -> str:
    """Return the title of a process; empty if it has ended."""
    try:
        return "".join(process.cmdline()[:1])
    except psutil.Error:
        return ""
