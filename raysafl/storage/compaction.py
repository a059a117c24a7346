"""`raysafl compact`: put the files of ended runs together into two."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from raysafl.core.text import format_bytes
from raysafl.storage.integrity import faults
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.paths import Location
from raysafl.storage.rows import read_parts, run_of, sorted_rows
from raysafl.storage.store import Store

# Runs whose rows are in memory at the same time.
RUNS_AT_ONCE = 256


@dataclass(frozen=True)
class Compaction:
    """What `compact` has done to a folder.

    Args:
        compacted: how many runs are in the compacted files now.
        left: the ids of the runs that keep files of their own.
        bytes_before: what the files in rounds/ and ledger/ had before.
        bytes_after: what they have now.
    """

    compacted: int
    left: list[str]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        sizes = (
            f"{format_bytes(self.bytes_before)} became {format_bytes(self.bytes_after)}"
        )
        left = (
            f"; {len(self.left)} runs keep their own files, as they have not ended, failed, "
            "or have a checkpoint or a damaged file"
        )
        return (
            f"{self.compacted} runs are compacted, {sizes}{left if self.left else ''}"
        )


def compact(store: Store, rows_of: Set[str] | None = None) -> Compaction:
    """Write rows and ledger entries of ended runs into two files; delete their own ones.

    Runs keep their own files if another attempt may change them: those that have not
    ended, that failed, or that have a checkpoint. So do runs with a damaged part, which
    is named in a warning, and runs whose rows are not those that they wrote.

    The compacted files are written first and the single ones deleted afterwards.
    `Store` ignores the parts of compacted runs, so a crash at any point leaves a folder
    that reads the same, and the next call completes the work.

    Args:
        store: the folder of the sweep.
        rows_of: the runs whose rows are compacted, where the file would otherwise be
            too large for its purpose; None: all. Ledger entries are always compacted.

    Raises:
        ValueError: the folder holds no sweep, or a compacted file is damaged.
        SweepBusyError: another process writes into the folder.
    """
    store.manifest()
    with store.lock():
        bytes_before = store.size()
        compacted = store.compacted
        entries = compacted.entries(strict=True)
        present = compacted.run_ids()
        parts = store.parts()
        ledger = store.ledger()
        ready = _ended_for_good(store, ledger)

        # First the compacted files are written, the rows before the ledger.
        new = {run_of(part) for part in parts} & ready - present
        if rows_of is not None:
            new &= rows_of
        if new:
            rows = _CompactedRows(store, parts, {i: ledger[i] for i in new})
            compacted.write_rows(rows.tables(sorted(present | new)))
            ready -= rows.damaged
            new -= rows.damaged
        entries |= {run_id: ledger[run_id] for run_id in ready}
        ledger_files = [file for file in store.ledger_files() if file.stem in ready]
        if ledger_files:
            compacted.write_entries(entries)

        # Then what is in them is deleted.
        for part in parts:
            if run_of(part) in present | new:
                part.unlink(missing_ok=True)
        for file in ledger_files:
            file.unlink(missing_ok=True)

        left = sorted((store.begun() | ledger.keys()) - entries.keys())
        return Compaction(len(entries), left, bytes_before, store.size())


def _ended_for_good(store: Store, ledger: Mapping[str, LedgerEntry]) -> set[str]:
    """Return the runs that no further attempt changes."""
    unfinished = {file.stem for file in store.checkpoints()}
    return {
        run_id for run_id, entry in ledger.items() if entry.status.decided
    } - unfinished


class _CompactedRows:
    """The rows for the compacted file, from the file that is there and from parts."""

    def __init__(
        self,
        store: Store,
        parts: Sequence[Location],
        new: Mapping[str, LedgerEntry],
    ) -> None:
        self.compacted = store.compacted
        self.new = new
        self.parts = defaultdict[str, list[Location]](list)
        for part in parts:
            if run_of(part) in new:
                self.parts[run_of(part)].append(part)
        # Runs with a part that cannot be read, or with rows that are not theirs.
        self.damaged: set[str] = set()

    def tables(self, run_ids: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of some runs at a time; runs with damaged parts have none."""
        for first in range(0, len(run_ids), RUNS_AT_ONCE):
            some = run_ids[first : first + RUNS_AT_ONCE]
            table, damaged = read_parts(
                [part for run_id in some for part in self.parts.get(run_id, [])]
            )
            lost = {run_of(part) for part in damaged}
            ended = {run_id: self.new[run_id] for run_id in some if run_id in self.new}
            lost |= faults(ended, table).keys()
            self.damaged |= lost

            known = pc.invert(
                pc.is_in(table["run_id"], pa.array(sorted(lost), pa.string()))
            )
            before = self.compacted.rows(
                [run_id for run_id in some if run_id not in self.parts]
            )
            yield sorted_rows(pa.concat_tables([before, table.filter(known)]))
