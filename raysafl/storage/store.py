"""The folder of a sweep: its layout, atomic writes, one writer at a time, careful reading.

<root>/<sweep>/manifest.json     what the sweep is (`Manifest`)
               rounds/           <run_id>-<first round>.parquet: the truth, row by row
               ledger/           <run_id>.json: how a run ended
               checkpoints/      <run_id>: where a run that is not finished goes on
               runs.parquet, table.md, *.png: made from the above

The folder may lie in an object store (`raysafl.storage.paths`). What is read was perhaps written by
others: it is data, checked before it is used, and no name or link in it leads out of the folder.
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from filelock import FileLock, Timeout
from pydantic import ValidationError

from raysafl.core.component import explain
from raysafl.core.record import COLUMNS, Column, Summary
from raysafl.storage.files import atomic_write, read_parquet, write_parquet
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.locks import RemoteLock, lock
from raysafl.storage.manifest import Entry, Manifest
from raysafl.storage.paths import Location, StorageError, local_folder

RUN_ID = Column("string", "first 12 digits of the SHA-256 of the run's JSON", Summary.KEY)
ROUND_COLUMNS = {"run_id": RUN_ID, **COLUMNS}  # of the files in rounds/, in this order
ARROW_TYPES = {
    "string": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "list of int32": pa.list_(pa.int32()),
}
ROUNDS = pa.schema([(name, ARROW_TYPES[c.type]) for name, c in ROUND_COLUMNS.items()])
AT_ONCE = 256  # files of rows that are in memory while they are read


class SweepBusyError(RuntimeError):
    """Another process is writing into this sweep's folder."""


@dataclass(frozen=True)
class Store:
    """One sweep's folder."""

    path: Location

    @property
    def is_remote(self) -> bool:
        """Whether the folder lies in an object store."""
        return local_folder(self.path) != self.path

    @property
    def rounds_path(self) -> Location:
        """The folder of Parquet parts; `pandas.read_parquet` reads it whole."""
        return self.path / "rounds"

    def create(self) -> None:
        """Make the folder. Raises ValueError if it cannot be written."""
        probe = self.path / f".writable.{os.getpid()}"
        try:
            self.rounds_path.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except (OSError, StorageError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise StorageError(
                f"cannot write results to {self.path} ({why}); choose another folder with --out"
            ) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only writer. The lock ends with the process, however it ends."""
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
        """For a trial to be the only one of its run."""
        return lock(self.file("tune", f"{run_id}.lock"))

    def file(self, *names: str) -> Location:
        """A file of the sweep. Raises ValueError if a name, or a link, leads out of the folder."""
        found = self.path
        for name in names:
            if not re.fullmatch(r"[^/\\\0]+", name) or name in (".", ".."):
                raise ValueError(f"{name!r} in {self.path} cannot be the name of a file of results")
            found = found / name
        if self.path.resolve() not in found.resolve().parents:
            raise ValueError(f"{found} is a link out of {self.path}; results stay inside")
        return found

    def checkpoint(self, run_id: str) -> Location:
        """Where a run that is not finished goes on."""
        return self.file("checkpoints", f"{run_id}.safetensors")

    def size(self) -> int:
        """Return how many bytes the files in rounds/ and ledger/ have together."""
        files = [*self.path.glob("rounds/*.parquet"), *self.path.glob("ledger/*.json")]
        return sum(file.stat().st_size for file in files)

    def write_manifest(self, manifest: Manifest) -> None:
        """Store what the sweep is."""
        atomic_write(self.path / "manifest.json", manifest.model_dump_json(indent=1).encode())

    def manifest(self) -> Manifest:
        """What the sweep is. Raises ValueError if the folder holds no sweep."""
        file = self.file("manifest.json")
        if not file.is_file():
            raise ValueError(f"{self.path} holds no sweep: {file.name} is missing")
        try:
            return Manifest.from_json(file.read_text())
        except StorageError:
            raise
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error

    def entries(self) -> list[Entry]:
        """The runs of the manifest; none if there is no manifest yet."""
        return self.manifest().entries if (self.path / "manifest.json").is_file() else []

    def forget(self, run_ids: Iterable[str] | None) -> None:
        """Delete the results of some runs, or (None) of all."""
        for run_id in ["*"] if run_ids is None else run_ids:
            one = [f"ledger/{run_id}.json", f"checkpoints/{run_id}.safetensors"]
            for file in [*self._parts(run_id), *(f for p in one for f in self._found(p))]:
                file.unlink(missing_ok=True)

    def write_part(self, run_id: str, first_round: int, rows: list[dict[str, Any]]) -> None:
        """Write, or write again, the rows of one checkpoint interval."""
        table = pa.Table.from_pylist([{"run_id": run_id, **row} for row in rows], schema=ROUNDS)
        write_parquet(table, self.file("rounds", f"{run_id}-{first_round:06d}.parquet"))

    def drop_parts(self, run_id: str, from_round: int = 0) -> None:
        """Remove a run's rows from a round on, before it runs these rounds again."""
        for part in self._parts(run_id):
            if int(part.stem.rpartition("-")[2]) >= from_round:
                part.unlink(missing_ok=True)

    def rounds(self, run_id: str = "*") -> pd.DataFrame:
        """All rows of a run, or of every run, by (run_id, replicate, round).

        A part that cannot be read is named in a warning, and the rest is read.
        """
        parts, tables = self._parts(run_id), [ROUNDS.empty_table()]
        for some in (parts[i : i + AT_ONCE] for i in range(0, len(parts), AT_ONCE)):
            tables.append(_joined(some))
        frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
        return frame.sort_values(["run_id", "replicate", "round"], ignore_index=True)

    def write_ledger(self, run_id: str, entry: LedgerEntry) -> None:
        """Record how a run ended."""
        atomic_write(self.file("ledger", f"{run_id}.json"), entry.to_json().encode())

    def ledger_entry(self, run_id: str) -> LedgerEntry | None:
        """Return how a run ended, or None if it has not ended.

        A file that cannot be read is named in a warning and treated as missing.
        """
        file = self.file("ledger", f"{run_id}.json")
        try:
            return _parsed_entry(file, file.read_bytes())
        except FileNotFoundError:
            return None

    def ledger(self) -> dict[str, LedgerEntry]:
        """Return how every ended run ended, by run id."""
        files = _contents(self._found("ledger/*.json"))
        entries = {file.stem: _parsed_entry(file, content) for file, content in files}
        return {run_id: entry for run_id, entry in entries.items() if entry is not None}

    def _found(self, pattern: str) -> list[Location]:
        """The files of the sweep that match, by name; those behind links out of it raise."""
        found: list[Location] = sorted(self.path.glob(pattern), key=str)
        return [self.file(file.parent.name, file.name) for file in found]

    def _parts(self, run_id: str = "*") -> list[Location]:
        """The files with rows of a run, or of every run; others in this folder are not ours."""
        found = self._found(f"rounds/{run_id}-*.parquet")
        return [part for part in found if re.fullmatch(r".+-[0-9]+", part.stem)]

    def begun(self) -> set[str]:
        """The runs that have rows."""
        return {part.stem.rpartition("-")[0] for part in self._parts()}

    def write_runs(self, frame: pd.DataFrame) -> None:
        """Write `runs.parquet`."""
        write_parquet(pa.Table.from_pandas(frame, preserve_index=False), self.file("runs.parquet"))

    def runs(self) -> pd.DataFrame:
        """The rows of `runs.parquet`. Raises ValueError if it is missing or damaged."""
        file = self.file("runs.parquet")
        try:
            frame: pd.DataFrame = read_parquet(file.read_bytes()).to_pandas()
        except StorageError:
            raise
        except Exception as error:  # whatever a damaged file does to its reader
            raise ValueError(
                f"{file} cannot be read ({error}); `raysafl report` makes it anew from rounds/"
            ) from error
        return frame


def _contents(files: list[Location]) -> list[tuple[Location, bytes]]:
    """What is in these files; many at once, as an object store is far away.

    A file that is gone by now is left out: a run that goes on drops rows it will write again.
    """

    def read(file: Location) -> bytes | None:
        try:
            return file.read_bytes()
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(16) as pool:
        both = zip(files, pool.map(read, files), strict=True)
        return [(file, content) for file, content in both if content is not None]


def _joined(parts: list[Location]) -> pa.Table:
    """The rows of these parts in one piece: a table of its own takes 18 KB however few."""
    tables = [ROUNDS.empty_table()]
    for part, content in _contents(parts):
        try:
            tables.append(_rows(content, part.stem.rpartition("-")[0]))
        except ValueError as error:
            warnings.warn(f"{part} cannot be read and is left out: {error}", stacklevel=3)
    return pa.concat_tables(tables).combine_chunks()


def _rows(content: bytes, run_id: str) -> pa.Table:
    """The rows of a part. Raises ValueError if they are damaged, or are not this run's."""
    table = read_parquet(content, ROUNDS)
    if any(table[name].null_count for name in ("run_id", "replicate", "seed", "round")):
        raise ValueError("it has rows without run, replicate, seed or round")
    for name in ("test_accuracy", "train_accuracy"):
        if np.isinf(table[name].to_numpy()).any():
            raise ValueError(f"its {name} is infinite")
    strangers = set(table["run_id"].to_pylist()) - {run_id}
    if strangers:
        raise ValueError(f"it has rows of another run, {min(strangers)!r}")
    return table


def _parsed_entry(file: Location, content: bytes) -> LedgerEntry | None:
    """Parse a ledger entry; None, with a warning that names the file, if it is damaged."""
    try:
        return LedgerEntry.from_json(content)
    except (ValueError, RecursionError) as error:
        why = explain(error) if isinstance(error, ValidationError) else error
        warnings.warn(f"{file} cannot be read and is left out: {why}", stacklevel=3)
        return None


def find_sweeps(root: Location) -> list[Store]:
    """The sweeps in a folder, or the folder itself if it is one."""
    if (root / "manifest.json").is_file():
        return [Store(root)]
    found: list[Location] = sorted(root.glob("*/manifest.json"), key=str)
    return [Store(file.parent) for file in found]
