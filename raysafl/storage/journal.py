"""The journal of a sweep: commits of runs that have ended, and a file for each open run.

    rounds/<k>.parquet   rows of runs that ended together           } commit k; its ledger
    clients/<k>.parquet  their table of clients, if there is one    } file, written last,
    ledger/<k>.jsonl     what it replaces, then an entry a run      } makes it count
    open/<run_id>.ckpt   a run that has not ended: rows and state, replaced as a whole
    models/<run_id>.safetensors   the models that an ended run kept
    states/<run_id>.ckpt          the state in which an ended run was, if states are kept

A commit is never changed. Of a run in two commits the later one counts. Forgetting and
compacting are commits, too: `forgets` names runs, and `replaces` names commits, which
then count nowhere and may be deleted. So a crash, or a reader at the same time, finds
the folder as it was before an act or after it.

Each line of a ledger is sealed (`raysafl.storage.sealed`). An entry holds sums of all
rows that its run wrote, and the digest of the models that it kept. Whoever shows or uses
results reads them by `Journal.read`, which says of each run whether all of that is there.
"""

import hashlib
import json
import re
import secrets
import time
import warnings
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from raysafl.core.component import explain
from raysafl.core.text import format_bytes
from raysafl.storage.files import atomic_write
from raysafl.storage.integrity import RowSum, difference, row_sums
from raysafl.storage.ledger import LedgerEntry, parsed_json
from raysafl.storage.paths import Location, StorageError, resolved
from raysafl.storage.rows import (
    CLIENTS,
    ORDER,
    ROUNDS,
    encoded,
    joined,
    read_rows,
    without_runs,
)
from raysafl.storage.sealed import (
    OpenState,
    dump_open,
    load_head,
    load_open,
    sealed,
    unsealed,
)

TABLES = tuple(ORDER)
# The name of a commit: milliseconds since 1970, and a random number.
COMMIT = r"[0-9]{13}-[0-9a-f]{12}"
# The suffix of the files in each folder, and a pattern of their names without it.
PLACES = {
    "rounds": (".parquet", COMMIT),
    "clients": (".parquet", COMMIT),
    "ledger": (".jsonl", COMMIT),
    "open": (".ckpt", r"[\w-]+"),
    "models": (".safetensors", r"[\w-]+"),
    "states": (".ckpt", r"[\w-]+"),
}
# How a line of the ledger begins; most lines need not be checked to find one run's.
FRONT = re.compile(rb'\{"sha256": "[0-9a-f]{64}", "run_id": "([\w-]+)"')
RUN_IN_BODY = re.compile(rb'\{"run_id": "([\w-]+)"')
# How what is wrong with a run's kept models begins.
KEPT = "the models that it kept "
# How often a reader begins again because commits were replaced meanwhile.
MOST_TRIES = 10


@dataclass(frozen=True)
class Commit:
    """What a file of the ledger says.

    Args:
        name: the name of the commit.
        replaces: the commits that count nowhere, as this one has their runs.
        forgets: the runs whose entries in earlier commits count nowhere.
        entries: the JSON of the entry of each run, by run id.
        faults: why lines cannot be read, by their numbers from 1.
    """

    name: str
    replaces: Set[str] = frozenset()
    forgets: Set[str] = frozenset()
    entries: Mapping[str, bytes] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """Results, without the runs of which something is missing or was changed.

    Args:
        ledger: how each ended run ended, by run id. A run of which something is missing
            or was changed has the status `damaged`, with the reason.
        rows: the rows of all runs but the damaged ones, also of those that go on, in no
            particular order.
        clients: the same of the table of clients.
        faults: what is wrong with each damaged run, by run id.
        unended: what the file of each run says that has begun and not ended, by run id.
    """

    ledger: dict[str, LedgerEntry]
    rows: pa.Table
    clients: pa.Table
    faults: dict[str, str]
    unended: dict[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Compaction:
    """What `Journal.compact` has done to a folder.

    Args:
        compacted: how many ended runs lie in one commit now.
        left: the ids of the runs that keep other files.
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
            f"; {len(self.left)} runs keep their own files, as they have not ended or have "
            "a damaged file"
        )
        return (
            f"{self.compacted} runs are compacted, {sizes}{left if self.left else ''}"
        )


@dataclass(frozen=True)
class Journal:
    """Reads and writes the results in a sweep's folder.

    Any process may commit and flush runs that it alone carries out. Only one process at
    a time may `forget`, `compact` or `tidy`, while no other one commits.

    Args:
        path: the folder, on this machine or in an object store.
    """

    path: Location

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

    def files(self, folder: str, name: str) -> list[Location]:
        """Return the files in a folder whose names without suffix match a pattern, sorted.

        Raises:
            ValueError: the folder or a file is a link out of the sweep's folder.
        """
        found = [f for f in self.path.glob(f"{folder}/*") if re.fullmatch(name, f.stem)]
        if found:
            self.file(folder)
        for link in [f for f in found if isinstance(f, Path) and f.is_symlink()]:
            self.file(folder, link.name)
        return sorted(found, key=str)

    def open_file(self, run_id: str) -> Location:
        """Return the path of the file from which a run that has not ended goes on."""
        return self.file("open", f"{run_id}.ckpt")

    def model(self, run_id: str) -> Location:
        """Return the path of the file with the models that a run kept."""
        return self.file("models", f"{run_id}.safetensors")

    def state_file(self, run_id: str) -> Location:
        """Return the path of the file with the state in which a run has ended."""
        return self.file("states", f"{run_id}.ckpt")

    def size(self) -> int:
        """Return how many bytes the files in rounds/ and ledger/ have together."""
        files = [*self.path.glob("rounds/*.parquet"), *self.path.glob("ledger/*.jsonl")]
        return sum(file.stat().st_size for file in files)

    # Runs that have not ended

    def flush(self, run_id: str, content: OpenState) -> None:
        """Save where a run is, in place of what was saved before.

        The file is not synced to the disk: what a power cut spoils is noticed, and the
        run then begins anew.
        """
        atomic_write(self.open_file(run_id), dump_open(run_id, content))

    def resume(self, run_id: str) -> OpenState | None:
        """Return where a run was that has not ended; None if nothing was saved.

        Raises:
            ValueError: the file is damaged, or belongs to another run.
        """
        return self._opened(run_id, with_state=True)

    def keep_state(self, run_id: str, content: OpenState) -> None:
        """Save the state in which a run has ended, before its end is committed."""
        atomic_write(self.state_file(run_id), dump_open(run_id, content), durable=True)

    def kept_state(self, run_id: str) -> bytes | None:
        """Return the state in which a run has ended; None if it was not kept.

        Raises:
            ValueError: the file is damaged, or belongs to another run.
        """
        try:
            with self.state_file(run_id).open("rb") as source:
                return load_open(source, run_id).state
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{self.state_file(run_id)}: {error}") from error

    def about(self, run_id: str) -> Mapping[str, Any]:
        """Return what was said of an open run by whoever saved it; nothing if damaged."""
        try:
            with self.open_file(run_id).open("rb") as source:
                about: Mapping[str, Any] = load_head(source, run_id)["about"]
                return about
        except (FileNotFoundError, ValueError):
            return {}

    def open_runs(self) -> list[str]:
        """Return the ids of the runs from which a file is there to go on."""
        return [file.stem for file in self.files("open", r"[\w-]+")]

    def _opened(self, run_id: str, with_state: bool) -> OpenState | None:
        try:
            with self.open_file(run_id).open("rb") as source:
                return load_open(source, run_id, with_state)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"the checkpoint cannot be used: {error}") from error

    # Commits

    def commit(
        self,
        rows: pa.Table,
        entries: Mapping[str, LedgerEntry],
        clients: pa.Table | None = None,
    ) -> None:
        """Make the results of runs count, all of them at the same moment.

        A run that needs no further attempt is not open any more afterwards.

        Args:
            rows: all rows of these runs.
            entries: how the runs ended. Their sums are filled in here.
            clients: all of their rows in the table of clients; None if they have none.

        Raises:
            ValueError: there are rows without an entry.
        """
        if clients is None:
            clients = CLIENTS.empty_table()
        tables = {"rounds": rows, "clients": clients}
        sums = {folder: row_sums(table) for folder, table in tables.items()}
        strangers = {i for own in sums.values() for i in own} - entries.keys()
        if strangers:
            raise ValueError(f"there are rows of another run, {min(strangers)!r}")
        complete = {
            run_id: entry.model_copy(
                update={
                    "sums": {t: own[run_id] for t, own in sums.items() if run_id in own}
                }
            )
            for run_id, entry in entries.items()
        }
        name = self._new_name()
        for folder, table in tables.items():
            self._write_table(folder, name, table)
        self._write_ledger(name, complete)
        # Most runs of a pack have no file, and a listing takes less than a deletion each.
        for run_id in entries.keys() & self.open_runs():
            if entries[run_id].status.decided:
                self.open_file(run_id).unlink(missing_ok=True)

    def commit_end(self, run_id: str, entry: LedgerEntry) -> None:
        """Make the end of an open run count, with its saved rows, time and origin."""
        try:
            saved = self._opened(run_id, with_state=False)
        except ValueError:
            # The rows are lost with the file.
            saved = None
        if saved is None:
            self.commit(ROUNDS.empty_table(), {run_id: entry})
        else:
            about = saved.about
            names = dict(started="started", spent="seconds", grown_from="grown_from")
            known = {own: about[n] for n, own in names.items() if about.get(n)}
            entry = entry.model_copy(update={**about.get("origin", {}), **known})
            self.commit(saved.rows, {run_id: entry}, saved.clients)

    def _new_name(self) -> str:
        """Return the name of a commit that is later than all others.

        It is later by the clock as well, since a shared folder may show a machine the
        commits of others late.
        """
        last = max((int(name[:13]) for name in self._names()), default=0)
        return (
            f"{max(time.time_ns() // 1_000_000, last + 1):013d}-{secrets.token_hex(6)}"
        )

    def _names(self) -> list[str]:
        return [file.stem for file in self.files("ledger", COMMIT)]

    def _write_table(self, folder: str, name: str, table: pa.Table) -> None:
        if content := encoded(table, folder):
            atomic_write(self.file(folder, f"{name}.parquet"), content, durable=True)

    def _write_ledger(
        self,
        name: str,
        entries: Mapping[str, LedgerEntry],
        replaces: Collection[str] = (),
        forgets: Collection[str] = (),
    ) -> None:
        head = {
            "commit": name,
            "replaces": sorted(replaces),
            "forgets": sorted(forgets),
        }
        lines = [head]
        lines += [
            {"run_id": i, **entry.content()} for i, entry in sorted(entries.items())
        ]
        content = b"".join(sealed(line) + b"\n" for line in lines)
        atomic_write(self.file("ledger", f"{name}.jsonl"), content, durable=True)

    def every_commit(self, run_ids: Set[str] | None = None) -> list[Commit]:
        """Return all commits in their order, also those that were replaced.

        Args:
            run_ids: read the entries of these runs only; None for all.

        Raises:
            StorageError: one of them is missing each time.
        """
        for _ in range(MOST_TRIES):
            # One that is missing was replaced and deleted since; a later one replaced it.
            with suppress(FileNotFoundError):
                return [
                    _parsed(n, self.file("ledger", f"{n}.jsonl").read_bytes(), run_ids)
                    for n in self._names()
                ]
        raise StorageError(
            f"{self.path / 'ledger'} has a file that cannot be opened, perhaps as it is a "
            "link to a file that is gone: delete it"
        )

    def commits(self, run_ids: Set[str] | None = None) -> list[Commit]:
        """Return the commits that were not replaced, in their order."""
        found = self.every_commit(run_ids)
        replaced = {name for commit in found for name in commit.replaces}
        return [commit for commit in found if commit.name not in replaced]

    def owners(
        self, run_ids: Set[str] | None = None
    ) -> dict[str, tuple[str, LedgerEntry]]:
        """Return the name of the commit in which each ended run counts, and its entry there."""
        commits = self.commits(run_ids)
        for commit in commits:
            for number, why in commit.faults.items():
                warnings.warn(
                    f"line {number} of {self.path / 'ledger' / commit.name}.jsonl cannot "
                    f"be read and is left out: {why}",
                    stacklevel=4,
                )
        found = {}
        for run_id, (name, body) in sorted(_counted(commits).items()):
            try:
                found[run_id] = (name, _entry(body))
            except (ValueError, RecursionError) as error:
                why = (
                    explain(error) if isinstance(error, ValidationError) else str(error)
                )
                warnings.warn(
                    f"the ledger entry of run {run_id} in commit {name} cannot be read and "
                    f"is left out: {why}",
                    stacklevel=4,
                )
        return found

    def unread(self) -> dict[str, str]:
        """Return the commit of each run whose entry is whole, but was not understood."""
        known = self.owners()
        counted = _counted(self.commits())
        return {i: name for i, (name, _) in counted.items() if i not in known}

    def unreadable(self) -> int:
        """Return how many lines of the ledger are damaged, or were not understood."""
        commits = self.commits()
        lost = sum(len(commit.faults) for commit in commits)
        for _, body in _counted(commits).values():
            try:
                _entry(body)
            except (ValueError, RecursionError):
                lost += 1
        return lost

    # Reading

    def ledger(self, run_ids: Collection[str] | None = None) -> dict[str, LedgerEntry]:
        """Return how some runs, or all, ended, by run id, in the order of the ids.

        This does not say whether what they wrote is there, as `read` does.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
        """
        return {i: entry for i, (_, entry) in self.owners(_ids(run_ids)).items()}

    def decided(self, run_ids: Collection[str]) -> dict[str, LedgerEntry]:
        """Return how those of some runs ended that need no further attempt."""
        found = self.ledger(run_ids)
        return {i: entry for i, entry in found.items() if entry.status.decided}

    def begun(self) -> set[str]:
        """Return the ids of the runs that have ended, or can go on from a file."""
        return {*self.open_runs(), *_counted(self.commits())}

    def read(
        self, run_ids: Collection[str] | None = None, unended: bool = True
    ) -> Checked:
        """Read results, and find the runs of which not all is there that they wrote.

        The rows in both tables and the kept models are compared with the digests in the
        ledger.

        Args:
            run_ids: the ids of the runs, or the id of one; None for all runs.
            unended: whether runs that have not ended are read, too.
        """
        ids = _ids(run_ids)
        for _ in range(MOST_TRIES):
            before = self._names()
            found = self._read(ids, unended)
            # Another process may have replaced commits while they were read.
            if not found.faults or self._names() == before:
                break
        return found

    def _read(self, ids: Set[str] | None, also_open: bool) -> Checked:
        # Open runs are read first: a run that ends meanwhile is then in both places, and
        # in the other order it would be in none.
        unended = self._open_tables(ids) if also_open else {}
        owners = self.owners(ids)
        ledger = {i: entry for i, (_, entry) in owners.items()}
        faults = {i: self._model_fault(i, entry) for i, entry in ledger.items()}
        tables: dict[str, list[pa.Table]] = {}
        for folder in TABLES:
            tables[folder], found = self._tables_of(folder, owners, ids is None)
            faults |= found
        wrong = {i: why for i, why in faults.items() if why}
        ledger |= {i: ledger[i].damaged(why) for i, why in wrong.items()}
        unended = {i: own for i, own in unended.items() if i not in owners}
        for own in unended.values():
            tables["rounds"].append(own.rows)
            tables["clients"].append(own.clients)
        rows, clients = (joined(tables[folder], folder) for folder in TABLES)
        if wrong:
            rows = without_runs(rows, wrong)
            clients = without_runs(clients, wrong)
        about = {i: own.about for i, own in unended.items()}
        return Checked(ledger, rows, clients, wrong, about)

    def _tables_of(
        self,
        folder: str,
        owners: Mapping[str, tuple[str, LedgerEntry]],
        whole: bool = True,
    ) -> tuple[list[pa.Table], dict[str, str]]:
        """Return the rows of ended runs in one table, and what is wrong with them.

        Args:
            folder: the name of the table's folder.
            owners: the commit of each run, and its entry there.
            whole: whether whole files are read, as they have few rows of other runs.
        """
        due: dict[str, dict[str, Mapping[int, RowSum]]] = {}
        for run_id, (name, entry) in owners.items():
            due.setdefault(name, {})[run_id] = entry.sums.get(folder, {})
        tables: list[pa.Table] = []
        faults: dict[str, str] = {}
        for name, sums in due.items():
            if not any(sums.values()):
                continue
            table = self._table(folder, name, None if whole else sums)
            found = row_sums(table)
            for run_id, own in sums.items():
                if why := difference(own, found.get(run_id, {}), folder):
                    faults[run_id] = why
            strange = found.keys() - sums.keys()
            tables.append(without_runs(table, strange) if strange else table)
        return tables, faults

    def _open_tables(self, ids: Set[str] | None) -> dict[str, OpenState]:
        """Return what open runs have so far, without their states; damaged files are left out."""
        found = {}
        for run_id in self.open_runs():
            if ids is None or run_id in ids:
                try:
                    content = self._opened(run_id, with_state=False)
                except ValueError as error:
                    file = self.open_file(run_id)
                    warnings.warn(
                        f"{file} cannot be read and is left out: {error}", stacklevel=5
                    )
                    continue
                if content is not None:
                    found[run_id] = content
        return found

    def _table(
        self, folder: str, name: str, run_ids: Iterable[str] | None = None
    ) -> pa.Table:
        """Return the rows in a file of a commit; none if it is missing or damaged."""
        file = self.file(folder, f"{name}.parquet")
        empty = joined([], folder)
        try:
            with file.open("rb") as source:
                return read_rows(folder, source, run_ids)
        except FileNotFoundError:
            return empty
        except ValueError as error:
            warnings.warn(
                f"{file} cannot be read and is left out: {error}", stacklevel=5
            )
            return empty

    def _model_fault(self, run_id: str, entry: LedgerEntry) -> str:
        """Say whether the file of a run's kept models is missing or is another one."""
        if not entry.kept:
            return ""
        try:
            digest = hashlib.sha256(self.model(run_id).read_bytes()).hexdigest()
        except FileNotFoundError:
            return f"{KEPT}are missing"
        return "" if digest == entry.kept else f"{KEPT}are damaged"

    # Forgetting and compacting

    def forget(self, run_ids: Collection[str] | None) -> None:
        """Delete the results of some runs, or of all runs if None is given.

        Files of rows that cannot be read are moved to `damaged/`.
        """
        ids = _ids(run_ids)
        beside = [*self.files("models", r"[\w-]+"), *self.files("states", r"[\w-]+")]
        if ids is None:
            ids = self.begun() | {file.stem for file in beside}
        every = run_ids is None
        held = {c.name for c in self.commits() if every or ids & c.entries.keys()}
        self.rewrite(held, ids)
        for run_id in ids.intersection(self.open_runs()):
            self.open_file(run_id).unlink(missing_ok=True)
        for file in beside:
            if file.stem in ids:
                file.unlink(missing_ok=True)

    def rewrite(self, names: Set[str], without: Set[str] = frozenset()) -> None:
        """Write the runs of some commits anew, without rows and lines that count nowhere.

        Args:
            names: the commits; nothing is written if there are none.
            without: the runs that are forgotten.
        """
        for name in self._replace(names, without) if names else ():
            self._set_aside(name)
        self.tidy()

    def compact(self) -> Compaction:
        """Put all commits together into one, and delete what counts nowhere.

        Commits with a damaged run, or with a line that cannot be read or understood, stay
        as they are.
        """
        before = self.size()
        found = self.commits()
        where = {i: name for i, (name, _) in _counted(found).items()}
        whole = self._replace({c.name for c in found if not c.faults}, least=2)
        self.tidy()
        left = {run_id for run_id, name in where.items() if name not in whole}
        compacted = len(where) - len(left)
        left |= set(self.open_runs()) - where.keys()
        return Compaction(compacted, sorted(left), before, self.size())

    def tidy(self) -> None:
        """Delete what counts nowhere: what a crash leaves, and what was replaced."""
        commits = self.every_commit()
        replaced = {name for commit in commits for name in commit.replaces}
        names = set()
        runs: set[str] = set()
        for commit in commits:
            # One that only forgets is needed as long as there is something to forget.
            empty = not (commit.entries or commit.faults or commit.forgets & runs)
            if commit.name in replaced or empty:
                self.file("ledger", f"{commit.name}.jsonl").unlink(missing_ok=True)
            else:
                names.add(commit.name)
                runs |= commit.entries.keys()
        for folder in TABLES:
            for file in self.files(folder, COMMIT):
                if file.stem not in names:
                    file.unlink(missing_ok=True)
        for run_id, entry in self.ledger(self.open_runs()).items():
            if entry.status.decided:
                self.open_file(run_id).unlink(missing_ok=True)
        self._delete_torn_files()

    def _delete_torn_files(self) -> None:
        """Delete what `atomic_write` leaves in the folders of results if it is killed."""
        for folder in (*PLACES, "damaged", "tune"):
            for file in self.files(folder, r"\..+"):
                if file.name.endswith(".part"):
                    file.unlink(missing_ok=True)
        for file in self.path.glob(".manifest.json.*.part"):
            file.unlink(missing_ok=True)

    def _replace(
        self, names: Set[str], without: Set[str] = frozenset(), least: int = 0
    ) -> Set[str]:
        """Write a commit that replaces others, with all of their runs that count but some.

        Commits in which another run is damaged, or has an entry that is not understood,
        stay.

        Args:
            names: the commits.
            without: the runs that are forgotten.
            least: with fewer commits than this, nothing is written.

        Returns:
            Those of the commits that do not stay.
        """
        names = names - {n for i, n in self.unread().items() if i not in without}
        owners = {
            run_id: owner
            for run_id, owner in self.owners().items()
            if owner[0] in names and run_id not in without
        }
        rows = {folder: self._tables_of(folder, owners) for folder in TABLES}
        damaged = {run_id for _, faults in rows.values() for run_id in faults}
        names = names - {owners[run_id][0] for run_id in damaged}
        if len(names) >= least:
            new = self._new_name()
            left = {i for i, (name, _) in owners.items() if name not in names}
            for folder, (tables, _) in rows.items():
                table = joined(tables, folder)
                self._write_table(folder, new, without_runs(table, left))
            entries = {i: owners[i][1] for i in owners.keys() - left}
            self._write_ledger(new, entries, names, without)
        return names

    def _set_aside(self, name: str) -> None:
        """Move the rows of a commit that cannot be read to where they are not read any more.

        Its runs have lost their rows in any case, but somebody may know how to rescue
        some of them.
        """
        for folder in TABLES:
            file = self.file(folder, f"{name}.parquet")
            try:
                with file.open("rb") as source:
                    read_rows(folder, source)
            except FileNotFoundError:
                continue
            except ValueError:
                aside = self.file("damaged", f"{folder}-{file.name}")
                atomic_write(aside, file.read_bytes())
                file.unlink()


def _parsed(name: str, content: bytes, run_ids: Set[str] | None) -> Commit:
    """Parse a file of the ledger; the entries of some runs only, unless None is given."""
    head: Mapping[str, Any] = {}
    entries: dict[str, bytes] = {}
    faults: dict[int, str] = {}
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n"), start=1):
        front = FRONT.match(line)
        if run_ids is not None and front and front[1].decode() not in run_ids:
            continue
        try:
            body = unsealed(line)
        except ValueError as error:
            faults[number] = str(error)
            continue
        run = RUN_IN_BODY.match(body)
        if run is not None:
            entries[run[1].decode()] = body
        elif number == 1:
            head = json.loads(body)
        else:
            faults[number] = "it names no run"
    if head and head.get("commit") != name:
        return Commit(name, faults={1: f"it is a copy of commit {head.get('commit')}"})
    if not head:
        faults.setdefault(1, "it names no commit")
    return Commit(
        name,
        frozenset(head.get("replaces", ())),
        frozenset(head.get("forgets", ())),
        entries,
        faults,
    )


def _counted(commits: Iterable[Commit]) -> dict[str, tuple[str, bytes]]:
    """Return the name of the commit in which each run counts, and the JSON of its entry."""
    found: dict[str, tuple[str, bytes]] = {}
    for commit in commits:
        for run_id in commit.forgets & found.keys():
            del found[run_id]
        found |= {i: (commit.name, body) for i, body in commit.entries.items()}
    return found


def _entry(body: bytes) -> LedgerEntry:
    """Return the entry in a line of the ledger. Raises ValueError if it is none."""
    fields = parsed_json(body)
    del fields["run_id"]
    return LedgerEntry.model_validate(fields)


def _ids(run_ids: Collection[str] | None) -> set[str] | None:
    """Return the ids as a set, also if the id of one run is given."""
    if run_ids is None:
        return None
    return {run_ids} if isinstance(run_ids, str) else set(run_ids)
