"""The folder of a sweep: layout, atomic writes, a lock for one writer, checked reading.

    <root>/<sweep>/
        manifest.json                          what the sweep is (`Manifest`)
        rounds/<run_id>-<first round>.parquet  rows of one run: the results themselves
        rounds/rounds.parquet                  rows of compacted runs
        ledger/<run_id>.json                   how a run ended (`LedgerEntry`)
        ledger/ledger.jsonl                    how compacted runs ended
        checkpoints/<run_id>.safetensors       where a run that has not ended goes on
        damaged/rounds.parquet                 compacted rows that could not be read
        runs.parquet                           statistics, made from the files above
        table.md, report.html, *.png           the report, made from them too
        .lock, tune/                           locks, and Tune's own files while it runs

The folder may lie in an object store (`raysafl.storage.paths`). Its files may come from
other people: they are data that is checked before it is used, and no name or link in
the folder leads out of it.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout

from raysafl.storage.compacted import Compacted
from raysafl.storage.files import atomic_write, read_parquet, write_parquet
from raysafl.storage.ledger import LedgerEntry, readable_entry
from raysafl.storage.locks import RemoteLock, lock
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location, StorageError, local_folder, resolved
from raysafl.storage.rows import ROUNDS, read_files, read_parts, run_of, sorted_rows

# What a sweep's folder holds, as patterns.
FOLDERS = ("rounds", "ledger", "checkpoints", "tune")
FILES = (
    "manifest.json",
    "runs.parquet",
    "table.md",
    "*.html",
    "*.png",
    "rounds/*.parquet",
    "ledger/*.json*",
    "checkpoints/*.safetensors",
)


class SweepBusyError(RuntimeError):
    """Another process is writing into this sweep's folder."""


@dataclass(frozen=True)
class Store:
    """Reads and writes the folder of one sweep.

    Args:
        path: the folder, on this machine or in an object store.
    """

    path: Location

    @property
    def is_remote(self) -> bool:
        """Whether the folder lies in an object store."""
        return local_folder(self.path) != self.path

    @property
    def rounds_path(self) -> Location:
        """The folder of the rows, which `pandas.read_parquet` reads as one table."""
        return self.path / "rounds"

    @property
    def compacted(self) -> Compacted:
        """The files of the runs that `raysafl compact` has put together."""
        return Compacted(
            rows_file=self.file("rounds", "rounds.parquet"),
            ledger_file=self.file("ledger", "ledger.jsonl"),
            aside=self.file("damaged", "rounds.parquet"),
        )

    def create(self) -> list[Path]:
        """Make the folder, if it is not there.

        Returns:
            The lock and the folders that were not there before, the innermost first.

        Raises:
            StorageError: it cannot be written, or has a folder in the place of a file.
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
            probe.write_bytes(b"")
            probe.unlink()
        except (OSError, StorageError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StorageError(
                f"cannot write results to {self.path} ({why}); choose another folder with --out"
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
        for pattern in FILES:
            for file in self.path.glob(pattern):
                if file.is_dir():
                    raise StorageError(
                        f"{file} is a folder, but results need a file there: move it away"
                    )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only writer of the folder, until the block or the process ends.

        Raises:
            SweepBusyError: another process has the lock.
        """
        held = lock(self.path / ".lock")
        try:
            held.acquire(timeout=0)
        except Timeout as error:
            raise SweepBusyError(
                f"another raysafl process is writing to {self.path}; wait for it to end, "
                "or choose another folder with --out"
            ) from error
        try:
            yield
        finally:
            held.release()

    def run_lock(self, run_id: str) -> FileLock | RemoteLock:
        """Return the lock by which a trial is the only one that computes its run."""
        return lock(self.file("tune", f"{run_id}.lock"))

    def file(self, *names: str) -> Location:
        """Return the path of a file of the sweep.

        Args:
            names: the names of folders and of the file, as they follow one another in
                the path.

        Raises:
            ValueError: a name or a link leads out of the folder.
        """
        found = self.path
        for name in names:
            if not re.fullmatch(r"[^/\\\0]+", name) or name in (".", ".."):
                raise ValueError(
                    f"{name!r} in {self.path} cannot be the name of a file of results"
                )
            found = found / name
        if resolved(self.path) not in resolved(found).parents:
            raise ValueError(
                f"{found} is a link out of {self.path}; results stay inside"
            )
        return found

    def checkpoint(self, run_id: str) -> Location:
        """Return the path of the file from which a run that has not ended goes on."""
        return self.file("checkpoints", f"{run_id}.safetensors")

    def size(self) -> int:
        """Return how many bytes the files in rounds/ and ledger/ have together."""
        files = [*self.path.glob("rounds/*.parquet"), *self.path.glob("ledger/*.json*")]
        return sum(file.stat().st_size for file in files)

    def write_manifest(self, manifest: Manifest) -> None:
        """Write `manifest.json`, which says what the sweep is."""
        atomic_write(
            self.path / "manifest.json", manifest.model_dump_json(indent=1).encode()
        )

    def manifest(self) -> Manifest:
        """Read `manifest.json`, which says what the sweep is.

        Raises:
            ValueError: the folder holds no sweep, or the file is damaged.
        """
        file = self.file("manifest.json")
        if not file.is_file():
            raise ValueError(f"{self.path} holds no sweep: it has no file {file.name}")
        try:
            return Manifest.from_json(file.read_text())
        except StorageError:
            raise
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error

    def forget(self, run_ids: Iterable[str] | None) -> None:
        """Delete the results of some runs, or of all runs if None is given.

        Damaged lines of the compacted ledger stay as they are. Compacted rows that
        cannot be read are set aside.
        """
        ids = ["*"] if run_ids is None else list(run_ids)

        # The ledger goes first: rows and a checkpoint without an entry are those of a
        # run that has not ended, so a crash in between leaves a folder that makes
        # sense.
        if run_ids is None:
            self.compacted.delete()
        else:
            self.compacted.remove_entries(ids)
        self._delete([f"ledger/{run_id}.json" for run_id in ids])
        self._delete([f"checkpoints/{run_id}.safetensors" for run_id in ids])
        if run_ids is not None:
            self.compacted.remove_rows(ids)
        for part in [part for run_id in ids for part in self.parts(run_id)]:
            part.unlink(missing_ok=True)

    def _delete(self, patterns: Iterable[str]) -> None:
        for file in [file for pattern in patterns for file in self._found(pattern)]:
            file.unlink(missing_ok=True)

    def write_part(
        self, run_id: str, first_round: int, rows: list[dict[str, Any]]
    ) -> pa.Table:
        """Write the rows of an interval as one part; replace it if it was there before.

        Args:
            run_id: the run.
            first_round: the number of the first round after the earlier checkpoint.
            rows: the fields of `Record` for each row.

        Returns:
            The rows that were written.
        """
        table = pa.Table.from_pylist(
            [{"run_id": run_id, **row} for row in rows], schema=ROUNDS
        )
        write_parquet(table, self.file("rounds", f"{run_id}-{first_round:06d}.parquet"))
        return table

    def drop_parts(self, run_id: str, from_round: int = 0) -> None:
        """Delete a run's rows from a round on, which are about to be computed again."""
        part = self.file("rounds", f"{run_id}-000000.parquet")
        self.compacted.move_to_part(run_id, from_round, part)
        for part in self.parts(run_id):
            if int(part.stem.rpartition("-")[2]) >= from_round:
                part.unlink(missing_ok=True)

    def rounds(self, run_id: str = "") -> pd.DataFrame:
        """Return the rows of a run, or of all runs, sorted by run, replicate and round.

        A file that cannot be read is named in a warning, and the other files are read.
        """
        frame: pd.DataFrame = sorted_rows(self.table(run_id)).to_pandas()
        return frame

    def table(self, run_id: str = "") -> pa.Table:
        """Return the same rows as an Arrow table, in no particular order."""
        # The parts are read first: if they are compacted meanwhile, their rows are
        # found in the compacted file, which is read later.
        table, _ = read_parts(self.parts(run_id or "*"))
        compacted = self.compacted.readable_rows([run_id] if run_id else None)

        # A crash may have left parts of compacted runs; they are ignored.
        if len(table) and len(compacted):
            outside = pc.invert(pc.is_in(table["run_id"], compacted["run_id"].unique()))
            table = table.filter(outside)
        return pa.concat_tables([compacted, table])

    def write_ledger(self, run_id: str, entry: LedgerEntry) -> None:
        """Record how a run ended."""
        atomic_write(self.file("ledger", f"{run_id}.json"), entry.to_json().encode())

    def ledger_entry(self, run_id: str) -> LedgerEntry | None:
        """Return how a run ended, or None if it has not ended.

        A file that cannot be read is named in a warning and treated as missing.
        """
        file = self.file("ledger", f"{run_id}.json")
        try:
            return readable_entry(file.read_bytes(), str(file))
        except FileNotFoundError:
            return self.compacted.entries(run_id).get(run_id)

    def ledger(self) -> dict[str, LedgerEntry]:
        """Return how every ended run ended, by run id, in the order of the ids.

        The files of single runs are read first, as they may be compacted meanwhile.
        They are at least as new as the compacted entries and take precedence.
        """
        files = read_files(self.ledger_files())
        single = {
            file.stem: readable_entry(content, str(file)) for file, content in files
        }
        entries = {**self.compacted.entries(), **single}
        return {
            run_id: entry
            for run_id, entry in sorted(entries.items())
            if entry is not None
        }

    def _found(self, pattern: str) -> list[Location]:
        """Return the files that match, sorted; a link out of the folder is an error."""
        found: list[Location] = sorted(self.path.glob(pattern), key=str)
        return [self.file(file.parent.name, file.name) for file in found]

    def parts(self, run_id: str = "*") -> list[Location]:
        """Return the parts of a run, or of all runs; ignore other files in rounds/."""
        found = self._found(f"rounds/{run_id}-*.parquet")
        return [part for part in found if re.fullmatch(r".+-[0-9]+", part.stem)]

    def ledger_files(self) -> list[Location]:
        """Return the files that hold the ledger entry of a single run."""
        return self._found("ledger/*.json")

    def checkpoints(self) -> list[Location]:
        """Return the checkpoints of all runs."""
        return self._found("checkpoints/*.safetensors")

    def begun(self) -> set[str]:
        """Return the ids of the runs that have rows."""
        try:
            compacted = self.compacted.run_ids()
        except StorageError:
            raise
        except ValueError:
            # `rounds` warns of the damaged file.
            compacted = set()
        return compacted | {run_of(part) for part in self.parts()}

    def write_runs(self, frame: pd.DataFrame) -> None:
        """Write the table of runs and replicates to `runs.parquet`."""
        write_parquet(
            pa.Table.from_pandas(frame, preserve_index=False), self.file("runs.parquet")
        )

    def runs(self) -> pd.DataFrame:
        """Return the table of runs and replicates in `runs.parquet`.

        Raises:
            ValueError: the file is missing or damaged.
        """
        file = self.file("runs.parquet")
        try:
            frame: pd.DataFrame = read_parquet(
                pa.BufferReader(file.read_bytes())
            ).to_pandas()
        except StorageError:
            raise
        # A damaged file may raise any kind of error.
        except Exception as error:
            raise ValueError(
                f"{file} cannot be read ({error}); `raysafl report` makes it anew from rounds/"
            ) from error
        return frame


def find_sweeps(root: Location) -> list[Store]:
    """Return the sweeps in a folder, or the folder itself if it is a sweep's."""
    if (root / "manifest.json").is_file():
        return [Store(root)]
    found: list[Location] = sorted(root.glob("*/manifest.json"), key=str)
    return [Store(file.parent) for file in found]
