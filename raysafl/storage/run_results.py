"""Results as those of the runs in a sweep's manifest: each run is a list of cells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from raysafl.storage.journal import Results
from raysafl.storage.ledger import CellEnd, Status, reason_of, worst
from raysafl.storage.manifest import Entry
from raysafl.storage.rows import of_owners

# How the reason of a cell begins that has ended, but whose results are damaged.
DAMAGED = "damaged: "


@dataclass(frozen=True)
class RunResult:
    """How far a run is, or how it has ended.

    Args:
        run_id: its id.
        labels: its labels.
        config: its configuration as JSON values; empty if it could not be built.
        cells: for each replicate how its cell ended, or how far it is.
    """

    run_id: str
    labels: Mapping[str, Any]
    config: Mapping[str, Any]
    cells: Sequence[CellEnd]

    @cached_property
    def worst(self) -> CellEnd:
        """The cell that stands for the run: the first of the worst status."""
        return worst(self.cells)

    @property
    def status(self) -> Status:
        """The worst status of its cells."""
        return self.worst.status

    @property
    def reason(self) -> str:
        """Why it did not run all of its rounds; mostly empty."""
        return reason_of(self.cells)

    @property
    def has_begun(self) -> bool:
        """Whether one of its cells has begun, has ended, or is damaged."""
        return any(end.reason or not end.status.unended for end in self.cells)

    @property
    def started(self) -> str:
        """When the first of its cells began, in UTC; empty if none has."""
        times = [end.started or end.ended for end in self.cells]
        return min(filter(None, times), default="")

    @property
    def ended(self) -> str:
        """When the last of its cells ended, in UTC; empty if none has."""
        return max(end.ended for end in self.cells)

    @property
    def seconds(self) -> float:
        """The time that its cells took together."""
        return sum(end.seconds for end in self.cells)


class RunResults(NamedTuple):
    """Results of runs.

    Args:
        runs: the runs of the manifest, or those that were asked for, by their ids.
        rows: the rows of these runs (`run_id`, `replicate`, ...), in no particular order.
        clients: the same of the table of clients.
        faults: what is wrong with cells that have ended but do not count, by their ids.
    """

    runs: dict[str, RunResult]
    rows: pa.Table
    clients: pa.Table
    faults: dict[str, str]

    @property
    def begun(self) -> dict[str, RunResult]:
        """The runs that have begun or ended."""
        return {i: run for i, run in self.runs.items() if run.has_begun}

    @property
    def damaged(self) -> set[str]:
        """The ids of the runs of which a cell has ended but does not count."""
        return {
            i
            for i, run in self.runs.items()
            if any(end.cell in self.faults for end in run.cells)
        }


def of_entries(
    entries: Sequence[Entry], found: Results, is_running: bool
) -> RunResults:
    """Return what results of cells say of runs.

    Args:
        entries: the runs.
        found: the results.
        is_running: whether a process goes on with what has not ended.
    """
    owners = {entry.run_id: entry.cells for entry in entries}
    state = Status.RUNNING if is_running else Status.WAITING
    unended = {
        cell: far.as_end(cell, state) for cell, far in found.going_on.cells.items()
    }
    unended |= {
        cell: CellEnd(
            cell=cell,
            status=Status.WAITING,
            reason=f"{DAMAGED}{why}; `raysafl run` computes it again",
        )
        for cell, why in found.faults.items()
    }
    known = unended | found.ends
    runs = {}
    for entry in entries:
        ends = [
            known.get(cell) or CellEnd(cell=cell, seed=seed, status=Status.WAITING)
            for cell, seed in zip(owners[entry.run_id], entry.seeds, strict=True)
        ]
        runs[entry.run_id] = RunResult(entry.run_id, entry.labels, entry.config, ends)
    return RunResults(
        runs,
        of_owners(found.rows, owners),
        of_owners(found.clients, owners),
        found.faults,
    )
