"""The folder of a sweep: layout, atomic writes, a lock for one writer, checked reading.

    <root>/<sweep>/
        manifest.json                          what the sweep is (`Manifest`)
        rounds/<run_id>-<first round>.parquet  rows of one run: the results themselves
        rounds/pack-<id>.<k>.parquet           rows of runs that ended in one pack
        rounds/rounds.parquet                  rows of compacted runs
        ledger/<run_id>.json                   how a run ended (`LedgerEntry`)
        ledger/pack-<id>.<k>.jsonl             how the runs of a pack ended
        ledger/ledger.jsonl                    how compacted runs ended
        clients/<run_id>.parquet               how well a run serves each client
        clients/clients.parquet                the same of compacted runs
        checkpoints/<run_id>.safetensors       where a run that has not ended goes on
        models/<run_id>.safetensors            the models that an ended run kept
        damaged/*.parquet                      rows of bundles that could not be read
        runs.parquet                           statistics, made from the files above
        table.md, report.html, *.png           the report, made from them too
        .lock, tune/                           locks, and Tune's own files while it runs

Two files of many runs, rows and ledger entries, are a bundle (`raysafl.storage.bundle`).
A run may be in several places after a crash, or while another process compacts. Then
its entry in a bundle outranks a file of its own, the compacted bundle outranks those of
packs, and among these the first name wins. Its rows are those of the bundle that has
its entry. If it has none there, they are its parts. Whoever moves a run writes it to
the place of higher rank first and deletes it from the others afterwards. So readers
read the places of lower rank first, and find a run that is moved meanwhile.

The folder may lie in an object store (`raysafl.storage.paths`). Its files may come from
other people: they are data that is checked before it is used, and no name or link in
the folder leads out of it.
"""

import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from filelock import FileLock, Timeout

from raysafl.storage.bundle import Bundle
from raysafl.storage.client_tables import ClientTables
from raysafl.storage.files import atomic_write, read_parquet, write_parquet
from raysafl.storage.ledger import LedgerEntry, entry_or_fault
from raysafl.storage.locks import RemoteLock, lock
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import (
    Location,
    StorageError,
    SweepBusyError,
    local_folder,
    resolved,
)
from raysafl.storage.rows import (
    ROUNDS,
    joined,
    of_runs,
    read_files,
    read_parts,
    run_of,
    schemas_of,
    sorted_rows,
    without_runs,
)

if TYPE_CHECKING:
    import pandas as pd

PACK_ID = r"[0-9a-f]{12}"
# The name of a pack's bundle. A run's id has no dot, so this is no name of a part.
PACK_BUNDLE = rf"pack-{PACK_ID}\.[0-9]+"
# What a sweep's folder holds, as patterns.
FOLDERS = ("rounds", "ledger", "clients", "checkpoints", "models", "tune")
FILES = (
    "manifest.json",
    "runs.parquet",
    "table.md",
    "*.html",
    "*.png",
    "rounds/*.parquet",
    "ledger/*.json*",
    "clients/*.parquet",
    "checkpoints/*.safetensors",
    "models/*.safetensors",
)


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
    def logs(self) -> Path:
        """The folder, on this machine, of what a user's callbacks have written of runs."""
        return local_folder(self.path) / "logs"

    @property
    def rounds_path(self) -> Location:
        """The folder of the rows, which `pandas.read_parquet` reads as one table."""
        return self.path / "rounds"

    @property
    def compacted(self) -> Bundle:
        """The bundle of the runs that `raysafl compact` has put together."""
        return self._bundle("rounds", "ledger")

    def bundles(self) -> list[Bundle]:
        """Return all bundles that have entries: the compacted one, then those of packs."""
        found = [f.stem for f in self._found("ledger/pack-*.jsonl")]
        names = [name for name in found if re.fullmatch(PACK_BUNDLE, name)]
        return [self.compacted, *(self._bundle(name, name) for name in names)]

    def unfinished_bundles(self) -> list[Location]:
        """Return the rows of packs that have no ledger, as the writer was killed."""
        ended = {bundle.rows_file.name for bundle in self.bundles()}
        found = self._found("rounds/pack-*.parquet")
        ours = [file for file in found if re.fullmatch(PACK_BUNDLE, file.stem)]
        return [file for file in ours if file.name not in ended]

    def _bundle(self, rows: str, ledger: str) -> Bundle:
        return Bundle(
            rows_file=self.file("rounds", f"{rows}.parquet"),
            ledger_file=self.file("ledger", f"{ledger}.jsonl"),
            aside=self.file("damaged", f"{rows}.parquet"),
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

    def model(self, run_id: str) -> Location:
        """Return the path of the file with the models that a run kept."""
        return self.file("models", f"{run_id}.safetensors")

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
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} cannot be read: {error}") from error

    def forget(self, run_ids: Collection[str] | None) -> None:
        """Delete the results of some runs, or of all runs if None is given.

        Only one process may do this at a time. Damaged lines of a bundle's ledger stay
        as they are. A bundle's rows that cannot be read are set aside.
        """
        ids = _ids(run_ids)
        bundles = self.bundles()
        # The ledger goes first: rows and a checkpoint without an entry are those of a
        # run that has not ended, so a crash in between leaves a folder that makes
        # sense.
        for bundle in bundles:
            if ids is None:
                bundle.delete()
            else:
                bundle.remove_entries(ids)
        _delete(self.ledger_files(ids), self.checkpoints(ids))
        for bundle in bundles:
            try:
                bundle.remove_rows(ids or ())
            except ValueError:
                bundle.set_aside()
        _delete(self.parts(ids), self.models(ids))
        self.client_tables.remove(ids)
        self.drop_unfinished_bundles()

    def tidy(self) -> None:
        """Delete what counts nowhere: what a crash leaves, and what was compacted.

        Only one process may do this at a time.
        """
        ended: set[str] = set()
        has_rows: set[str] = set()
        for bundle in self.bundles():
            own = bundle.ended()
            bundle.remove_entries(own & ended)
            # `table` warns of rows that cannot be read.
            with suppress(ValueError):
                bundle.remove_rows(ended)
                has_rows |= bundle.run_ids() & own
            ended |= own
        self.drop_unfinished_bundles()
        _delete(self.ledger_files(ended), self.parts(has_rows), self.checkpoints(ended))

    def write_bundle(
        self, pack_id: str, rows: pa.Table, entries: Mapping[str, LedgerEntry]
    ) -> None:
        """Write the rows and the ledger entries of runs that have ended, as one bundle.

        What these runs have besides, parts, an entry of an earlier attempt and a
        checkpoint, is deleted afterwards.

        Args:
            pack_id: 12 hexadecimal digits. A process writes bundles with this id only
                as long as no other one does.
            rows: all rows of these runs.
            entries: how the runs ended. No further attempt may change any of them.

        Raises:
            ValueError: there are rows without an entry, or a run that is not decided.
        """
        strangers = set(rows["run_id"].unique().to_pylist()) - entries.keys()
        if strangers:
            raise ValueError(f"there are rows of another run, {min(strangers)!r}")
        for run_id, entry in entries.items():
            if not entry.status.decided:
                raise ValueError(f"run {run_id} is {entry.status}, and is run again")
        bundle = self._bundle(*[f"pack-{pack_id}.{self._unused(pack_id)}"] * 2)
        bundle.write_rows([sorted_rows(rows)], rows.schema)
        bundle.write_entries(entries)
        ids = entries.keys()
        _delete(self.parts(ids), self.ledger_files(ids), self.checkpoints(ids))

    def ended_in(self, pack_id: str) -> dict[str, LedgerEntry]:
        """Return the entries in the bundles that were written with an id."""
        found: dict[str, LedgerEntry] = {}
        for bundle in self.bundles():
            if bundle.ledger_file.name.startswith(f"pack-{pack_id}."):
                found |= bundle.entries()
        return found

    def drop_unfinished_bundles(self) -> None:
        """Delete the rows of bundles whose writer was killed before it wrote a ledger.

        No trial of an earlier driver may be writing when this is called.
        """
        _delete(self.unfinished_bundles())

    def _unused(self, pack_id: str) -> int:
        """Return the first k that no bundle of a pack has."""
        if not re.fullmatch(PACK_ID, pack_id):
            raise ValueError(f"{pack_id!r} is no id of a pack")
        name = f"pack-{pack_id}.*"
        files = [*self._found(f"ledger/{name}"), *self._found(f"rounds/{name}")]
        names = [f.stem for f in files if re.fullmatch(PACK_BUNDLE, f.stem)]
        return max((int(name.rpartition(".")[2]) for name in names), default=-1) + 1

    def write_part(self, run_id: str, first_round: int, rows: pa.Table) -> None:
        """Write the rows of an attempt at a run, in place of those written before.

        Args:
            run_id: the run.
            first_round: the number of the first round of the attempt.
            rows: all rows of the attempt so far.
        """
        write_parquet(rows, self.file("rounds", f"{run_id}-{first_round:06d}.parquet"))

    def drop_parts(self, run_id: str, from_round: int = 0) -> None:
        """Delete a run's rows from a round on, which are about to be computed again.

        Rows in a bundle stay: those runs have ended, and only the driver forgets them.
        """
        for part in self.parts(run_id):
            if int(part.stem.rpartition("-")[2]) >= from_round:
                part.unlink(missing_ok=True)
                continue
            rows, _ = read_parts([part])
            before = rows.filter(pc.less(rows["round"], from_round))
            if len(before) < len(rows):
                write_parquet(before, part)

    def rounds(self, run_ids: Collection[str] | None = None) -> "pd.DataFrame":
        """Return the rows of some runs, or of all, sorted by run, replicate and round.

        A file that cannot be read is named in a warning, and the other files are read.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        frame: pd.DataFrame = sorted_rows(self.table(run_ids)).to_pandas()
        return frame

    def table(self, run_ids: Collection[str] | None = None) -> pa.Table:
        """Return the same rows as an Arrow table, in no particular order."""
        return self.readable(run_ids)[0]

    def readable(
        self, run_ids: Collection[str] | None = None
    ) -> tuple[pa.Table, dict[Location, str]]:
        """Return the same rows, and the files that cannot be read, each with the reason."""
        ids = _ids(run_ids)
        # The places of lower rank are read first.
        parts, damaged = read_parts(self.parts(ids))
        found: list[tuple[set[str], pa.Table]] = []
        for bundle in reversed(self.bundles()):
            own = bundle.ended(ids)
            try:
                rows = bundle.rows(ids) if own else ROUNDS.empty_table()
            except ValueError as error:
                warnings.warn(f"{error}; it is left out", stacklevel=3)
                damaged[bundle.rows_file] = str(error)
                rows = ROUNDS.empty_table()
            found.append((own, rows))

        tables = []
        taken: set[str] = set()
        for own, rows in reversed(found):
            tables.append(of_runs(rows, own - taken))
            taken |= own
        bundled = joined(tables)
        apart = without_runs(parts, bundled["run_id"].unique().to_pylist())
        return joined([bundled, apart]), damaged

    def schema(self) -> pa.Schema:
        """Return the columns of all rows together, without reading the rows of bundles.

        Files that cannot be read are left out.
        """
        found = schemas_of(self.parts())
        for bundle in self.bundles():
            # `readable` names a file that cannot be read.
            with suppress(ValueError):
                found.append(bundle.schema())
        return joined(schema.empty_table() for schema in found).schema

    @property
    def client_tables(self) -> ClientTables:
        """The files of `clients/`, which runs with `eval_clients` have."""
        compacted = self.file("clients", "clients.parquet")
        found = self._found("clients/*.parquet")
        return ClientTables(compacted, tuple(f for f in found if f != compacted))

    def write_clients(self, run_id: str, rows: pa.Table) -> None:
        """Write how well a run serves each client, in place of what was written before."""
        write_parquet(rows, self.file("clients", f"{run_id}.parquet"))

    def clients(self, run_ids: Collection[str] | None = None) -> "pd.DataFrame":
        """Return how well the models of some runs, or of all, serve each client.

        There is one row for each run, replicate, round in which clients were evaluated,
        and client, sorted in this order. A file that cannot be read is named in a
        warning and left out.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        frame: pd.DataFrame = self.client_tables.read(_ids(run_ids)).to_pandas()
        return frame

    def write_ledger(self, run_id: str, entry: LedgerEntry) -> None:
        """Record how a run ended."""
        atomic_write(self.file("ledger", f"{run_id}.json"), entry.to_json().encode())

    def ledger_entry(self, run_id: str) -> LedgerEntry | None:
        """Return how a run ended, or None if it has not ended.

        A file that cannot be read is named in a warning and treated as missing.
        """
        # A name that leads out of the folder is an error here.
        self.file("ledger", f"{run_id}.json")
        return self.ledger({run_id}).get(run_id)

    def ledger(self, run_ids: Collection[str] | None = None) -> dict[str, LedgerEntry]:
        """Return how some runs, or all, ended, by run id, in the order of the ids.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        ids = _ids(run_ids)
        # The places of lower rank are read first.
        entries: dict[str, LedgerEntry] = {}
        for file, content in read_files(self.ledger_files(ids)):
            entry = entry_or_fault(content)
            if isinstance(entry, LedgerEntry):
                entries[file.stem] = entry
            else:
                message = f"{file} cannot be read and is left out: {entry}"
                warnings.warn(message, stacklevel=2)
        for bundle in reversed(self.bundles()):
            entries |= bundle.entries(ids)
        return dict(sorted(entries.items()))

    def _found(
        self,
        pattern: str,
        run_ids: Collection[str] | None = None,
        owner: Callable[[Location], str] = attrgetter("stem"),
    ) -> list[Location]:
        """Return the files that match, sorted; a link out of the folder is an error.

        Args:
            pattern: matches the files' paths in the folder.
            run_ids: return the files of these runs only; None for all files.
            owner: returns the id of the run that a file belongs to.
        """
        ids = _ids(run_ids)
        found: list[Location] = [
            f for f in self.path.glob(pattern) if ids is None or owner(f) in ids
        ]
        for folder in {file.parent.name for file in found}:
            self.file(folder)
        for link in [f for f in found if isinstance(f, Path) and f.is_symlink()]:
            self.file(link.parent.name, link.name)
        return sorted(found, key=str)

    def parts(self, run_ids: Collection[str] | None = None) -> list[Location]:
        """Return the parts of some runs, or of all; ignore other files in rounds/."""
        found = self._found("rounds/*-*.parquet", run_ids, run_of)
        return [part for part in found if re.fullmatch(r".+-[0-9]+", part.stem)]

    def ledger_files(self, run_ids: Collection[str] | None = None) -> list[Location]:
        """Return the files that hold the ledger entry of a single run."""
        return self._found("ledger/*.json", run_ids)

    def checkpoints(self, run_ids: Collection[str] | None = None) -> list[Location]:
        """Return the checkpoints of some runs, or of all."""
        return self._found("checkpoints/*.safetensors", run_ids)

    def models(self, run_ids: Collection[str] | None = None) -> list[Location]:
        """Return the files with the models that some runs, or all, kept."""
        return self._found("models/*.safetensors", run_ids)

    def begun(self) -> set[str]:
        """Return the ids of the runs that have parts or are in a bundle."""
        begun = {run_of(part) for part in self.parts()}
        return begun.union(*(bundle.ended() for bundle in self.bundles()))

    def write_runs(self, frame: "pd.DataFrame") -> None:
        """Write the table of runs and replicates to `runs.parquet`."""
        write_parquet(
            pa.Table.from_pandas(frame, preserve_index=False), self.file("runs.parquet")
        )

    def runs(self) -> "pd.DataFrame":
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


def _ids(run_ids: Collection[str] | None) -> Collection[str] | None:
    """Return the ids as a set, also if the id of one run is given."""
    if run_ids is None:
        return None
    return {run_ids} if isinstance(run_ids, str) else set(run_ids)


def _delete(*files: Iterable[Location]) -> None:
    for file in [file for some in files for file in some]:
        file.unlink(missing_ok=True)


def find_sweeps(root: Location) -> list[Store]:
    """Return the sweeps in a folder, or the folder itself if it is a sweep's."""
    if (root / "manifest.json").is_file():
        return [Store(root)]
    found: list[Location] = sorted(root.glob("*/manifest.json"), key=str)
    return [Store(file.parent) for file in found]
