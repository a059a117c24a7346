"""How far a sweep is, from its folder alone: while it runs, when it was killed, and after.

Runs are counted by the ledger and the checkpoints. What goes on now is the line that the
driver shows, which it also writes into the folder every five seconds.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from raysafl.core.text import printable
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import run_name
from raysafl.storage.paths import atomic_write
from raysafl.storage.store import Store

# How many failed runs are named.
MOST_ERRORS = 3
# The file in which the driver says how far it is, and how many characters of it are shown.
HEARTBEAT = ("tune", "heartbeat.txt")
LONGEST_LINE = 500
# The states of runs with which `raysafl run` goes on.
UNFINISHED = {Status.WAITING, Status.RUNNING, Status.FAILED}


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Args:
        name: the folder.
        is_running: whether a process writes to the folder.
        runs: how many runs are in each state.
        heartbeat: what the driver said last, and how long ago; empty if none is at work
            or it has said nothing yet.
        errors: the last runs that failed or diverged, and why.
    """

    name: str
    is_running: bool
    runs: Mapping[str, int]
    heartbeat: str = ""
    errors: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return all of it as lines of text."""
        state = "running" if self.is_running else "no process is writing to it"
        runs = ", ".join(f"{n} {state}" for state, n in self.runs.items())
        lines = [f"{self.name}: {state}", f"runs: {runs or 'none'}"]
        if self.heartbeat:
            lines.append(self.heartbeat)
        elif not self.is_running and self.runs.keys() & UNFINISHED:
            lines.append("`raysafl run` goes on with it")
        return [*lines, *self.errors]


def status_of(store: Store) -> SweepStatus:
    """Say how far the sweep in a folder is.

    Raises:
        ValueError: the folder holds no sweep, or its manifest is damaged.
    """
    results = store.read()
    is_running = store.is_running
    counts = Counter(run.status.value for run in results.runs.values())
    bad = [run for run in results.runs.values() if run.status.bad]
    bad.sort(key=lambda run: run.ended, reverse=True)
    return SweepStatus(
        str(store.path),
        is_running,
        {state.value: counts[state] for state in Status if counts[state]},
        _heartbeat(store) if is_running else "",
        [
            f"{run_name(run.labels, run.run_id)}: {run.status.value}, {run.reason}"
            for run in bad[:MOST_ERRORS]
        ],
    )


def write_heartbeat(store: Store, line: str) -> None:
    """Let other processes read in the folder how far the sweep is."""
    atomic_write(store.file(*HEARTBEAT), line.encode())


def _heartbeat(store: Store) -> str:
    """Return what the driver wrote last and how long ago; empty if it has not."""
    with suppress(OSError):
        file = store.file(*HEARTBEAT)
        seconds = max(time.time() - file.stat().st_mtime, 0.0)
        line = file.read_bytes()[:LONGEST_LINE].decode(errors="replace")
        return f"{printable(line)} ({seconds:.0f} s ago)"
    return ""
