"""The folder of a sweep: layout, a lock for one writer, manifest and tables.

    <root>/<sweep>/
        manifest.json                   what the sweep is (`Manifest`)
        rounds/, clients/, ledger/      results of runs that have ended (`Journal`)
        open/, models/, states/         runs that have not ended; kept models; last states
        damaged/*.parquet               rows of runs that could not be read
        runs.parquet                    statistics, made from the files above
        table.md, report.html, *.png    the report, made from them too
        mlflow.json, logs/              where MLflow shows it; what callbacks write
        .lock, tune/                    locks, and Tune's own files while it runs

The folder may lie in an object store (`raysafl.storage.paths`). Its files may come from
other people: they are data that is checked before it is used, and no name or link in
the folder leads out of it.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from raysafl.core.text import closest
from raysafl.storage.files import atomic_write, read_parquet
from raysafl.storage.journal import PLACES, Journal
from raysafl.storage.locks import RemoteLock, lock
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import (
    Location,
    Remote,
    StorageError,
    SweepBusyError,
    local_folder,
)
from raysafl.storage.rows import sorted_rows
from raysafl.storage.sealed import seal, unsealed

if TYPE_CHECKING:
    import pandas as pd

# What a sweep's folder holds, as patterns.
FOLDERS = (*PLACES, "tune")
FILES = ("manifest.json", "runs.parquet", "table.md", "*.html", "*.png")
# What to do about a manifest that cannot be read.
ANEW = "`raysafl run FILE` writes it anew from the experiment file"


@dataclass(frozen=True)
class Store(Journal):
    """Reads and writes the folder of one sweep.

    Args:
        path: the folder, on this machine or in an object store.
    """

    @property
    def is_remote(self) -> bool:
        """Whether the folder lies in an object store."""
        return isinstance(self.path, Remote)

    @property
    def logs(self) -> Path:
        """The folder, on this machine, of what a user's callbacks have written of runs."""
        return local_folder(self.path) / "logs"

    @property
    def rounds_path(self) -> Location:
        """The folder of the rows, which `pandas.read_parquet` reads as one table."""
        return self.path / "rounds"

    def create(self) -> list[Path]:
        """Make the folder, if it is not there.

        Returns:
            The lock and the folders that were not there before, the innermost first.

        Raises:
            StorageError: it cannot be written or locked, or has a folder in the place of a
                file. No new folder is left.
        """
        self._check_kinds()
        new: list[Path] = []
        probe = self.path / f".writable.{os.getpid()}"
        try:
            # An object store has no folders.
            if isinstance(self.path, Path):
                places = (self.path / ".lock", self.path / "rounds", self.path)
                new = [p for p in (*places, *self.path.parents) if not p.exists()]
            self.rounds_path.mkdir(parents=True, exist_ok=True)
            if isinstance(probe, Path):
                # Shared storage may have no locks.
                with FileLock(probe):
                    pass
            else:
                probe.write_bytes(b"")
            probe.unlink(missing_ok=True)
        except (OSError, StorageError) as error:
            remove_empty([probe, *new] if isinstance(probe, Path) else [])
            why = error.strerror if isinstance(error, OSError) else error
            raise StorageError(
                f"cannot write results to {self.path} ({why}); choose another folder (out, --out)"
            ) from error
        return new

    def _check_kinds(self) -> None:
        """Refuse a folder where results have a file, and a file where they have a folder."""
        if not isinstance(self.path, Path):
            return
        for name in FOLDERS:
            if (folder := self.path / name).exists() and not folder.is_dir():
                raise StorageError(
                    f"{folder} is no folder, but results need one there: move it away"
                )
        inside = [f"{folder}/*{suffix}" for folder, (suffix, _) in PLACES.items()]
        for pattern in (*FILES, *inside):
            for file in self.path.glob(pattern):
                if file.is_dir():
                    raise StorageError(
                        f"{file} is a folder, but results need a file there: move it away"
                    )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only writer of the folder, until the block or the process ends.

        Trials of a killed driver live on for a moment and may write: what they write
        counts, so their end is waited for.

        Raises:
            SweepBusyError: another process has the lock.
            StorageError: the storage has no locks.
        """
        file = self.path / ".lock"
        held = lock(file)
        try:
            # Whoever looks whether a local file is locked has it for a moment.
            held.acquire(timeout=0 if isinstance(held, RemoteLock) else 0.2)
        except Timeout as error:
            raise SweepBusyError(
                f"another raysafl process is writing to {self.path}; wait for it to end, "
                "or choose another folder (out, --out)"
            ) from error
        except OSError as error:
            # An error of flock's names no file.
            if error.filename is not None:
                raise
            raise StorageError(
                f"cannot lock {file} ({error.strerror}): move the folder to a disk with locks"
            ) from error
        try:
            if isinstance(file, Path):
                # It says when this attempt began.
                os.utime(file)
            trials: list[Location] = sorted(self.path.glob("tune/*.lock"), key=str)
            for trial in trials:
                of_trial = lock(trial)
                of_trial.acquire()
                of_trial.release()
            yield
        finally:
            held.release()

    def run_lock(self, run_id: str) -> FileLock | RemoteLock:
        """Return the lock by which a trial is the only one that computes its run."""
        return lock(self.file("tune", f"{run_id}.lock"))

    def rounds(self, run_ids: Collection[str] | None = None) -> "pd.DataFrame":
        """Return the rows of some runs, or of all, sorted by run, replicate and round.

        Damaged runs are left out.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        frame: pd.DataFrame = sorted_rows(self.read(run_ids).rows).to_pandas()
        return frame

    def clients(self, run_ids: Collection[str] | None = None) -> "pd.DataFrame":
        """Return how well the models of some runs, or of all, serve each client.

        There is one row for each run, replicate, round in which clients were evaluated,
        and client, sorted in this order. Damaged runs are left out.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        table = sorted_rows(self.read(run_ids).clients, "clients")
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def write_manifest(self, manifest: Manifest) -> None:
        """Write `manifest.json`, which says what the sweep is."""
        content = seal(manifest.model_dump_json(indent=1).encode())
        atomic_write(self.path / "manifest.json", content)

    def manifest(self) -> Manifest:
        """Read `manifest.json`, which says what the sweep is.

        Raises:
            ValueError: the folder holds no sweep, or the file is damaged.
        """
        file = self.file("manifest.json")
        if not file.is_file():
            raise ValueError(f"{self.path} holds no sweep: it has no file {file.name}")
        try:
            return Manifest.from_json(unsealed(file.read_bytes()).decode())
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
            ValueError: the file is missing or damaged, or holds another table.
        """
        file = self.file("runs.parquet")
        try:
            table = read_parquet(pa.BufferReader(file.read_bytes()))
            needed = {"run_id", "status", "reason"} | (
                {"replicate"} if len(table) else set()
            )
            if missing := needed - set(table.column_names):
                raise ValueError(f"it has no column {min(missing)!r}")
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


def remove_empty(places: Iterable[Path]) -> None:
    """Remove new files and folders of a sweep that was refused, if nothing is in them."""
    for place in places:
        with suppress(OSError):
            place.rmdir() if place.is_dir() else place.unlink()


def find_sweeps(root: Location) -> list[Store]:
    """Return the sweeps in a folder, or the folder itself if it is a sweep's."""
    if (root / "manifest.json").is_file():
        return [Store(root)]
    found: list[Location] = sorted(root.glob("*/manifest.json"), key=str)
    return [Store(file.parent) for file in found]


def sweeps_in(root: Location) -> list[Store]:
    """Return the same, or refuse a folder in which there is no sweep.

    Raises:
        ValueError: there is none.
    """
    if found := find_sweeps(root):
        return found
    if isinstance(root, Path) and not root.exists():
        beside = [str(folder) for folder in root.parent.glob("*") if folder.is_dir()]
        close = closest(str(root), beside)
        hint = f": did you mean {close}?" if close else ""
        raise ValueError(f"there is no folder {root}{hint}")
    raise ValueError(
        f"{root} holds no sweep: no manifest.json in it or one level below"
    )
