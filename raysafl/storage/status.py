"""How far a sweep is, from its folder alone: while it runs, when it was killed, and after.

Runs are read from the files of the journal. Those that go on are saved every 30 seconds
(`Runner.flush_seconds`), so what is told of them is about as old. The time left is what
the driver told last, which it does every five seconds.
"""

import datetime
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from raysafl.core.text import about, count
from raysafl.storage.files import atomic_write
from raysafl.storage.ledger import LedgerEntry, Seeds, Status
from raysafl.storage.locks import is_held
from raysafl.storage.manifest import run_name
from raysafl.storage.store import Store

# How many failed runs are named.
MOST_ERRORS = 3
# The file in which the driver tells how much time is left.
LEFT = ("tune", "left.json")


@dataclass(frozen=True)
class SweepStatus:
    """How far a sweep is.

    Args:
        name: the folder.
        is_running: whether a process writes to the folder.
        at_work: how many packs are being carried out.
        runs: how many runs are in each state: the statuses of the ledger, `running` or
            `interrupted` for those that can go on, and `waiting`.
        replicates: the same of replicates; those of waiting runs are not known.
        rounds: how many rounds of replicates are over: run, or not needed as a replicate
            has stopped; all rounds of a run that failed.
        rounds_left: about how many are left.
        rows: how many rows are stored.
        rate: rounds of replicates a second in the present or last attempt; None if not
            known.
        left: about how many seconds the rest takes; None if nothing goes on or if that
            is not known yet.
        errors: the last runs that failed or diverged, and why.
    """

    name: str
    is_running: bool
    at_work: int
    runs: Mapping[str, int]
    replicates: Mapping[str, int]
    rounds: int
    rounds_left: int
    rows: int
    rate: float | None = None
    left: float | None = None
    errors: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return all of it as lines of text."""
        packs = f", {count(self.at_work, 'pack')} at work" if self.at_work else ""
        state = f"running{packs}" if self.is_running else "no process is writing to it"
        lines = [f"{self.name}: {state}"]
        for what, counts in (("runs", self.runs), ("replicates", self.replicates)):
            told = ", ".join(f"{n} {state}" for state, n in counts.items())
            lines.append(f"{what}: {told or 'none'}")
        total = self.rounds + self.rounds_left
        share = (
            f" of about {total} ({self.rounds / total:.0%})" if self.rounds_left else ""
        )
        rate = f", {self.rate:.3g} a second" if self.rate else ""
        lines.append(
            f"rounds over, of all replicates: {self.rounds}{share}{rate}; rows: {self.rows} "
            "(counted, not checked: `raysafl verify` does)"
        )
        if self.left is not None:
            lines.append(f"time left: {about(self.left)}")
        elif self.is_running and (self.rounds_left or self.runs.get("waiting")):
            lines.append("time left: not known yet")
        elif self.is_running:
            lines.append(
                "all of these have ended: the report, or a search's next runs, come now"
            )
        elif self.rounds_left or self.runs.keys() & {"waiting", "failed"}:
            lines.append("`raysafl run` goes on with it")
        return [*lines, *self.errors]


class _Progress(NamedTuple):
    """How far a run is.

    Args:
        state: its state.
        replicates: how many of its replicates are in each state.
        size: the rounds that it is to have, all replicates together.
        over: how many of these are over.
        fresh: how many of these belong to the present attempt.
        rows: how many rows it has stored.
    """

    state: str
    replicates: Counter[str]
    size: int
    over: int
    fresh: int
    rows: int

    @classmethod
    def ended(cls, entry: LedgerEntry, began: float) -> Self:
        """Return how a run has ended, in an attempt that began at some time."""
        size = _rounds_of(entry.config)
        replicates = Counter(end.status.value for end in entry.replicates)
        replicates[entry.status.value] += entry.seeds.replicates - replicates.total()
        rows = sum(own.rows for own in entry.sums.get("rounds", {}).values())
        fresh = size - entry.over_before if _seconds(entry.ended) >= began else 0
        return cls(entry.status.value, replicates, size, size, fresh, rows)

    @classmethod
    def open(cls, about: Mapping[str, Any], state: str) -> Self:
        """Return how far a run is that has not ended.

        Args:
            about: what its file says of it; empty if that is damaged.
            state: the state of runs that have begun.
        """
        config = about.get("config", {})
        over = about.get("rounds_over", 0)
        fresh = over - about.get("over_before", 0)
        # What was reused waits for the rest.
        state = state if fresh or not about.get("grown_from") else "waiting"
        replicates = Counter({state: Seeds.model_validate(config).replicates})
        rows = about.get("rows", 0)
        return cls(state, replicates, _rounds_of(config), over, fresh, rows)


def status_of(store: Store) -> SweepStatus:
    """Say how far the sweep in a folder is.

    Raises:
        ValueError: the folder holds no sweep, or its manifest is damaged.
    """
    manifest = store.manifest()
    labels = manifest.labels()
    lock = store.path / ".lock"
    is_running = is_held(lock)
    is_there = isinstance(lock, Path) and lock.is_file()
    start = lock if is_there else store.file("manifest.json")
    # The ledger has whole seconds.
    began = float(int(start.stat().st_mtime))
    # Open runs are looked at first: one that ends meanwhile is then found in both places.
    saved: dict[str, float] = {}
    for run_id in labels.keys() & store.open_runs():
        with suppress(FileNotFoundError):
            saved[run_id] = store.open_file(run_id).stat().st_mtime
    ledger = {i: entry for i, entry in store.ledger().items() if i in labels}
    for run_id, entry in ledger.items():
        # One that failed may have begun again.
        if entry.status.decided or _seconds(entry.ended) >= int(saved.get(run_id, 0)):
            saved.pop(run_id, None)
    state = Status.RUNNING if is_running else Status.INTERRUPTED
    every = [
        *(_Progress.ended(ledger[i], began) for i in ledger.keys() - saved.keys()),
        *(_Progress.open(store.about(i), state) for i in saved),
    ]
    runs = Counter(own.state for own in every)
    waiting = len(labels) - len(every)
    runs["waiting"] += waiting
    size = statistics.mean(own.size for own in every) if every else 0
    rounds_left = sum(own.size - own.over for own in every) + round(waiting * size)
    fresh = sum(own.fresh for own in every)
    ends = [_seconds(entry.ended) for entry in ledger.values()]
    last = max([*saved.values(), *ends, began])
    rate = fresh / (last - began) if fresh and last > began else None
    is_on = is_running and (rounds_left or runs["waiting"] or manifest.searched_by)
    failed = [(e.ended, i) for i, e in ledger.items() if e.status.bad]
    errors = [
        f"{run_name(labels[i], i)}: {ledger[i].status.value}, {ledger[i].reason}"
        for _, i in sorted(failed, reverse=True)[:MOST_ERRORS]
    ]
    return SweepStatus(
        str(store.path),
        is_running,
        sum(is_held(file) for file in store.path.glob("tune/*.lock")),
        _by_state(runs),
        _by_state(sum((own.replicates for own in every), Counter[str]())),
        sum(own.over for own in every),
        rounds_left,
        sum(own.rows for own in every),
        rate,
        _told_left(store, began) if is_on else None,
        errors,
    )


def tell_left(store: Store, seconds: float) -> None:
    """Tell other processes about how many seconds the rest takes."""
    atomic_write(store.file(*LEFT), json.dumps(seconds).encode())


def _told_left(store: Store, began: float) -> float | None:
    """Return what an attempt has told since it began, less the time since then."""
    try:
        file = store.file(*LEFT)
        told = file.stat().st_mtime
        seconds = float(json.loads(file.read_bytes()))
    # The folder may hold anything.
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    is_sound = told >= began and 0 <= seconds < math.inf
    return max(seconds - max(time.time() - told, 0), 0) if is_sound else None


def _rounds_of(config: Mapping[str, Any]) -> int:
    """Return the number of rounds of a run, all replicates together."""
    return int(config.get("rounds", 0)) * Seeds.model_validate(config).replicates


def _seconds(moment: str) -> float:
    """Return a time of the ledger in seconds since 1970."""
    return datetime.datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _by_state(counts: Mapping[str, int]) -> dict[str, int]:
    """Return counts in the order in which runs go through their states."""
    order = ["waiting", *sorted(Status, key=lambda status: not status.unended)]
    return {state: counts[state] for state in order if counts.get(state)}
