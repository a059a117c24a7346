"""The folder of a sweep: layout, a lock for one writer, manifest, tables, and results of runs.

    <root>/<sweep>/
        manifest.json                   what the sweep is (`Manifest`)
        ledger.jsonl, rounds/, clients/ results of cells that have ended (`Journal`)
        open/, models/, states/         packs that go on; kept models; last states
        runs.parquet                    statistics, made from the files above
        table.md, report.html, *.png    the report, made from them too
        mlflow.json, logs/              where MLflow shows it; what callbacks write
        .lock, tune/                    the lock, and Tune's own files while it runs

Its files may come from other people: they are data that is checked before it is used, and
no name or link in the folder leads out of it.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from raysafl.core.text import closest
from raysafl.storage.journal import Journal, Results
from raysafl.storage.ledger import SEVERITY, CellEnd, Status
from raysafl.storage.manifest import Entry, Manifest
from raysafl.storage.paths import (
    StorageError,
    SweepBusyError,
    atomic_write,
    is_held,
    seal,
    unsealed,
)
from raysafl.storage.rows import of_owners, read_parquet, sorted_rows

if TYPE_CHECKING:
    import pandas as pd

# What to do about a manifest that cannot be read.
ANEW = "`raysafl run FILE` writes it anew from the experiment file"
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
        """The cell that stands for the run: the first of the worst status that says why."""
        return max(
            self.cells,
            key=lambda end: (SEVERITY.index(end.status), bool(end.reason)),
        )

    @property
    def status(self) -> Status:
        """The worst status of its cells."""
        return self.worst.status

    @property
    def reason(self) -> str:
        """Why it did not run all of its rounds, and how many seeds; mostly empty."""
        first = self.worst
        if not first.reason or len(self.cells) == 1:
            return first.reason
        alike = [e.reason for e in self.cells if e.status is first.status and e.reason]
        one = ", the first" if len(set(alike)) > 1 else ""
        return f"{len(alike)} of {len(self.cells)} seeds{one}: {first.reason}"

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


@dataclass(frozen=True)
class Store(Journal):
    """Reads and writes the folder of one sweep.

    Args:
        path: the folder, on this machine or in an object store.
    """

    @property
    def logs(self) -> Path:
        """The folder of what a user's callbacks have written of runs."""
        return self.path / "logs"

    @property
    def is_running(self) -> bool:
        """Whether a process writes to the folder."""
        return is_held(self.path / ".lock")

    def create(self) -> list[Path]:
        """Make the folder, if it is not there.

        Returns:
            The lock and the folders that were not there before, the innermost first.

        Raises:
            StorageError: it cannot be written or locked. No new folder is left.
        """
        new: list[Path] = []
        probe = self.path / f".writable.{os.getpid()}"
        try:
            places = (self.path / ".lock", self.path / "rounds", self.path)
            new = [p for p in (*places, *self.path.parents) if not p.exists()]
            (self.path / "rounds").mkdir(parents=True, exist_ok=True)
            # Shared storage may have no locks.
            with FileLock(probe):
                pass
            probe.unlink(missing_ok=True)
        except OSError as error:
            remove_empty([probe, *new])
            raise StorageError(
                f"cannot write results to {self.path} ({error.strerror}); choose another "
                "folder (out, --out)"
            ) from error
        return new

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only writer of the folder, until the block or the process ends.

        Raises:
            SweepBusyError: another process has the lock.
        """
        file = self.path / ".lock"
        file.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(file)
        try:
            # Whoever looks whether a file is locked has it for a moment.
            held.acquire(timeout=0.2)
        except Timeout as error:
            raise SweepBusyError(
                f"another raysafl process is writing to {self.path}; wait for it to end, "
                "or choose another folder (out, --out)"
            ) from error
        try:
            # It says when this attempt began.
            os.utime(file)
            yield
        finally:
            held.release()

    def read(
        self,
        run_ids: Collection[str] | None = None,
        unended: bool = True,
        is_running: bool | None = None,
    ) -> RunResults:
        """Read the results of the sweep's runs.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all.
            unended: whether cells that have not ended are read, too.
            is_running: whether a process goes on with these; None: whether one writes to
                the folder.

        Raises:
            ValueError: the folder holds no sweep, or its manifest is damaged.
        """
        entries = self.manifest().entries
        if run_ids is None:
            found = self.results(unended=unended)
        else:
            wanted = {run_ids} if isinstance(run_ids, str) else set(run_ids)
            entries = [entry for entry in entries if entry.run_id in wanted]
            cells = {cell for entry in entries for cell in entry.cells}
            found = self.results(cells, unended)
        if is_running is None:
            is_running = bool(found.going_on.cells) and self.is_running
        return _of_entries(entries, found, is_running)

    def rounds(self, run_ids: Collection[str] | None = None) -> "pd.DataFrame":
        """Return the rows of some runs, or of all, sorted by run, replicate and round.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        frame: pd.DataFrame = sorted_rows(self.read(run_ids).rows).to_pandas()
        return frame

    def clients(self, run_ids: Collection[str] | None = None) -> "pd.DataFrame":
        """Return how well the models of some runs, or of all, serve each client.

        There is one row for each run, replicate, round in which clients were evaluated,
        and client, sorted in this order.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        table = sorted_rows(self.read(run_ids).clients, "clients")
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def write_manifest(self, manifest: Manifest) -> None:
        """Write `manifest.json`, which says what the sweep is."""
        fields = manifest.model_dump(mode="json")
        # A line for each run, whose configuration is long.
        entries = ",\n  ".join(map(json.dumps, fields.pop("entries")))
        rest = json.dumps(fields, indent=1).removesuffix("\n}")
        text = f'{rest},\n "entries": [\n  {entries}\n ]\n}}\n'
        atomic_write(self.path / "manifest.json", seal(text.encode()))

    def manifest(self) -> Manifest:
        """Read `manifest.json`, which says what the sweep is.

        Raises:
            ValueError: the folder holds no sweep, or the file is damaged.
        """
        file = self.file("manifest.json")
        if not file.is_file():
            raise ValueError(f"{self.path} holds no sweep: it has no file {file.name}")
        try:
            return _parsed(file.read_bytes())
        except (ValueError, RecursionError) as error:
            # The fault of a part is named once for each model around it.
            why = str(error).replace("Manifest: ", "")
            raise ValueError(f"{file} cannot be read: {why}; {ANEW}") from error

    def write_runs(self, frame: "pd.DataFrame") -> None:
        """Write the table of runs and replicates to `runs.parquet`."""
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pandas(frame, preserve_index=False)
        pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
        atomic_write(self.file("runs.parquet"), sink.getvalue().to_pybytes())

    def runs(self) -> "pd.DataFrame":
        """Return the table of runs and replicates in `runs.parquet`.

        Raises:
            ValueError: the file is missing or damaged.
        """
        file = self.file("runs.parquet")
        try:
            table = read_parquet(file.read_bytes())
            # What pandas notes beside the columns has no checksum.
            table = table.replace_schema_metadata(None)
            frame: pd.DataFrame = table.to_pandas()
            if "partition_seed" in frame:
                # Large seeds are no floats, which a missing one would make of them.
                seeds = table["partition_seed"]
                typed = seeds.to_pandas(integer_object_nulls=True).astype("Int64")
                # `astype` of the frame would leave each column in a block of its own.
                frame["partition_seed"] = typed
        except (FileNotFoundError, ValueError, pa.ArrowException) as error:
            raise ValueError(
                f"{file} cannot be read ({error}); `raysafl report` makes it anew from rounds/"
            ) from error
        return frame


def _of_entries(
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


# A command reads the manifest several times, and that of a large sweep has megabytes.
@lru_cache(maxsize=2)
def _parsed(content: bytes) -> Manifest:
    return Manifest.from_json(unsealed(content).decode())


def remove_empty(places: Iterable[Path]) -> None:
    """Remove new files and folders of a sweep that was refused, if nothing is in them."""
    for place in places:
        with suppress(OSError):
            place.rmdir() if place.is_dir() else place.unlink()


def find_sweeps(root: Path) -> list[Store]:
    """Return the sweeps in a folder, or the folder itself if it is a sweep's."""
    if (root / "manifest.json").is_file():
        return [Store(root)]
    return [Store(file.parent) for file in sorted(root.glob("*/manifest.json"))]


def sweeps_in(root: Path) -> list[Store]:
    """Return the same, or refuse a folder in which there is no sweep.

    Raises:
        ValueError: there is none.
    """
    if found := find_sweeps(root):
        return found
    if not root.exists():
        beside = [folder.name for folder in root.parent.glob("*") if folder.is_dir()]
        close = closest(root.name, beside)
        hint = f": did you mean {root.parent / close}?" if close else ""
        raise ValueError(f"there is no folder {root}{hint}")
    raise ValueError(
        f"{root} holds no sweep: no manifest.json in it or one level below"
    )
