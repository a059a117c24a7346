"""`raysafl compact`: put the files of ended runs together into two."""

import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import pyarrow as pa

from raysafl.core.text import format_bytes
from raysafl.storage.integrity import faults
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.rows import run_of, sorted_rows, without_runs
from raysafl.storage.store import Store

# Rows of files with so many bytes are in memory at the same time.
BYTES_AT_ONCE = 32 * 2**20


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
    ended, that failed, or that have a checkpoint. So do runs with a damaged file, which
    is named in a warning, and runs whose rows are not those that they wrote.

    The compacted files are written first and the others deleted afterwards. `Store`
    ignores what the others hold of compacted runs, so a crash at any point leaves a
    folder that reads the same, and the next call completes the work.

    Args:
        store: the folder of the sweep.
        rows_of: the runs whose parts are compacted, where the file would otherwise be
            too large for its purpose; None: all. Ledger entries are always compacted.

    Raises:
        ValueError: the folder holds no sweep, or a compacted file is damaged.
        SweepBusyError: another process writes into the folder.
    """
    store.manifest()
    with store.lock():
        return put_together(store, rows_of)


def put_together(store: Store, rows_of: Set[str] | None = None) -> Compaction:
    """Do what `compact` does, for a process that holds the lock of the folder."""
    bytes_before = store.size()
    compacted, *packs = store.bundles()
    entries = compacted.entries(strict=True)
    present = compacted.run_ids() & entries.keys()
    ledger = store.ledger()
    in_packs = {run_id for bundle in packs for run_id in bundle.ended()}
    parts = {run_of(part) for part in store.parts()}
    ready = _ended_for_good(store, ledger) | in_packs | entries.keys()
    # The runs whose rows are to be compacted, and those that get an entry there.
    new = (parts if rows_of is None else parts & rows_of) | in_packs
    new = (new & ready) - present
    moved = ready - entries.keys()

    if new:
        rows = _Rows(store, {i: ledger[i] for i in new}, bytes_before)
        compacted.write_rows(rows.tables(sorted(present | new)), store.schema())
        moved -= rows.damaged
    if moved:
        compacted.write_entries(entries | {i: ledger[i] for i in moved})
    # Then what is in them is deleted elsewhere.
    store.tidy()

    ended = entries.keys() | moved
    store.client_tables.compact(ended)
    left = sorted((parts | ledger.keys()) - ended)
    return Compaction(len(ended), left, bytes_before, store.size())


def put_together_if_undamaged(store: Store) -> None:
    """Do what `put_together` does; if a compacted file is damaged, warn instead.

    The folder then stays as it is, and reads the same.
    """
    try:
        put_together(store)
    except ValueError as error:
        warnings.warn(
            f"the results are not compacted: {error}. `raysafl verify "
            f"{store.path} --repair` removes what is damaged",
            stacklevel=2,
        )


def _ended_for_good(store: Store, ledger: Mapping[str, LedgerEntry]) -> set[str]:
    """Return the runs that no further attempt changes."""
    unfinished = {file.stem for file in store.checkpoints()}
    decided = {run_id for run_id, entry in ledger.items() if entry.status.decided}
    return decided - unfinished


class _Rows:
    """The rows for the compacted file, from the file that is there and all others.

    Args:
        store: the folder of the sweep.
        new: the entries of the runs whose rows are not in that file.
        size: the number of bytes of all these files.
    """

    def __init__(self, store: Store, new: Mapping[str, LedgerEntry], size: int) -> None:
        self.store = store
        self.new = new
        self.turns = 1 + size // BYTES_AT_ONCE
        # Runs with a file that cannot be read, or with rows that are not theirs.
        self.damaged: set[str] = set()

    def tables(self, run_ids: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of some runs at a time; damaged new runs have none."""
        at_once = 1 + len(run_ids) // self.turns
        for first in range(0, len(run_ids), at_once):
            some = run_ids[first : first + at_once]
            table, unreadable = self.store.readable(some)
            if self.store.compacted.rows_file in unreadable:
                raise ValueError(unreadable[self.store.compacted.rows_file])
            new = {run_id: self.new[run_id] for run_id in some if run_id in self.new}
            lost = {run_of(file) for file in unreadable} | faults(new, table).keys()
            lost &= new.keys()
            self.damaged |= lost
            yield sorted_rows(without_runs(table, lost))
