"""The results in a sweep's folder: a ledger of cells, and parts with their rows.

    ledger.jsonl            how cells have ended
    rounds/<part>.parquet   rows of cells; a part is never changed, and its name is the
    clients/<part>.parquet  beginning of the SHA-256 of its bytes
    open/<pack>.ckpt        where the cells of a pack are that go on, replaced as a whole
    models/<cell>.safetensors   the model that a cell kept
    states/<cell>.ckpt          the state in which a cell ended, if states are kept

One process writes: the driver, which holds the lock of the folder. `take` writes the rows of
cells that have ended as a part, and then appends to the ledger the lines that name it. So a
cell counts when its line is there, and a crash before that leaves a part that counts nowhere.
`rewrite` writes new parts, replaces the ledger as a whole, and deletes the old parts. A reader
finds the results before an act or after it.
"""

import hashlib
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from raysafl.storage.ledger import (
    CellEnd,
    Checkpoint,
    LedgerLines,
    farthest,
    read_lines,
    to_lines,
)
from raysafl.storage.paths import atomic_write, delete, durable_append, resolved
from raysafl.storage.rows import (
    ORDER,
    encoded,
    joined,
    of_cells,
    read_rows,
    without_cells,
)

TABLES = tuple(ORDER)
# The name of a part, without its suffix.
PART = r"[0-9a-f]{24}"
# The suffix of the files in each folder, and a pattern of their names without it.
PLACES = {
    "rounds": (".parquet", PART),
    "clients": (".parquet", PART),
    "open": (".ckpt", r"[\w-]+"),
    "models": (".safetensors", r"[\w-]+"),
    "states": (".ckpt", r"[\w-]+"),
}
# A part that is larger is not put together with others.
LARGE_PART = 64_000_000
# So many small parts are put together while a sweep goes on.
MOST_SMALL_PARTS = 100
# How often a reader begins again because parts were replaced meanwhile.
MOST_TRIES = 10


class Results(NamedTuple):
    """Results of cells, without those of which something is missing or was changed.

    Args:
        ends: how cells ended, by their ids.
        rows: the rows of these and of those that go on, in no particular order.
        clients: the same of the table of clients.
        going_on: how far those are that have begun and not ended.
        faults: what is wrong with cells that have ended but do not count, by their ids.
    """

    ends: dict[str, CellEnd]
    rows: pa.Table
    clients: pa.Table
    going_on: Checkpoint
    faults: dict[str, str]


@dataclass(frozen=True)
class Journal:
    """Reads and writes the results in a sweep's folder.

    Only the process that holds the folder's lock may write.

    Args:
        path: the folder.
    """

    path: Path

    def file(self, *names: str) -> Path:
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

    def files(self, folder: str) -> list[Path]:
        """Return the files of results in a folder, sorted by name.

        Raises:
            ValueError: the folder or a file is a link out of the sweep's folder.
        """
        suffix, name = PLACES[folder]
        found = sorted(self.path.glob(f"{folder}/*{suffix}"))
        found = [file for file in found if re.fullmatch(name, file.stem)]
        for file in found:
            if file is found[0] or file.is_symlink():
                self.file(folder, file.name)
        return found

    def part(self, folder: str, name: str) -> Path:
        """Return the path of a part, by its name without the suffix."""
        return self.file(folder, f"{name}.parquet")

    def model(self, cell: str) -> Path:
        """Return the path of the file with the model that a cell kept."""
        return self.file("models", f"{cell}.safetensors")

    def state(self, cell: str) -> Path:
        """Return the path of the file with the state in which a cell has ended."""
        return self.file("states", f"{cell}.ckpt")

    # Reading

    def lines(self, cells: Collection[str] | None = None) -> LedgerLines:
        """Read the ledger, or only the lines of some cells."""
        try:
            content = self.file("ledger.jsonl").read_bytes()
        except FileNotFoundError:
            content = b""
        return read_lines(content, cells)

    def ledger(self, cells: Collection[str] | None = None) -> dict[str, CellEnd]:
        """Return how cells have ended, by their ids; damaged lines are left out.

        This does not say whether their rows are there, as `results` does.

        Args:
            cells: only these cells; None for all.
        """
        found = self.lines(cells)
        for number, why in found.faults.items():
            warnings.warn(
                f"line {number} of {self.path / 'ledger.jsonl'} cannot be read and is left "
                f"out: {why}",
                stacklevel=3,
            )
        return found.ends

    def results(
        self, cells: Collection[str] | None = None, unended: bool = True
    ) -> Results:
        """Read results, and find the cells of which not all is there that they wrote.

        Args:
            cells: the ids of the cells; None for all.
            unended: whether cells that have not ended are read, too.
        """
        for _ in range(MOST_TRIES):
            before = self._ledger_size()
            found = self._results(cells, unended)
            # The driver may have replaced parts while they were read.
            if not found.faults or self._ledger_size() == before:
                break
        return found

    def _ledger_size(self) -> tuple[int, int]:
        try:
            known = (self.path / "ledger.jsonl").stat()
        except FileNotFoundError:
            return 0, 0
        return known.st_size, known.st_ino

    def _results(self, cells: Collection[str] | None, unended: bool) -> Results:
        # What goes on is read first: a cell that ends meanwhile is then in both places,
        # and in the other order it would be in none.
        going_on = self.going_on(cells) if unended else Checkpoint({})
        ends = self.ledger(cells)
        faults: dict[str, str] = {}
        tables: dict[str, list[pa.Table]] = {folder: [] for folder in TABLES}
        for folder in TABLES:
            for name, members in _by_part(folder, ends).items():
                wanted = None if cells is None else members
                try:
                    table = self.rows_of_part(folder, name, wanted)
                    tables[folder].append(of_cells(table, members))
                except ValueError as error:
                    faults |= dict.fromkeys(members, f"{folder}/{name}.parquet {error}")
        for cell, end in ends.items():
            if end.kept and (why := self._fault_of_model(end)):
                faults[cell] = why
        sound = {cell: end for cell, end in ends.items() if cell not in faults}
        going_on = going_on.only(going_on.cells.keys() - ends.keys())
        tables["rounds"].append(going_on.rows)
        tables["clients"].append(going_on.clients)
        rows, clients = (without_cells(joined(tables[f], f), faults) for f in TABLES)
        return Results(sound, rows, clients, going_on, faults)

    def rows_of_part(
        self, folder: str, name: str, cells: Iterable[str] | None = None
    ) -> pa.Table:
        """Return the rows in a part, or those of some cells.

        Raises:
            ValueError: the part is missing or damaged.
        """
        try:
            content = self.part(folder, name).read_bytes()
        except FileNotFoundError:
            raise ValueError("is missing") from None
        if _name_of_part(content) != name:
            raise ValueError("is damaged: its SHA-256 is not its name")
        return read_rows(folder, content, cells)

    def _fault_of_model(self, end: CellEnd) -> str:
        """Say whether the file of a kept model is missing or is another one."""
        try:
            digest = hashlib.sha256(self.model(end.cell).read_bytes()).hexdigest()
        except FileNotFoundError:
            return f"models/{end.cell}.safetensors is missing"
        return "" if digest == end.kept else f"models/{end.cell}.safetensors is damaged"

    def going_on(self, cells: Collection[str] | None = None) -> Checkpoint:
        """Return how far the cells are that have begun and may not have ended.

        Of a cell in two files, as packs may be formed anew, the one counts that has gone
        farther. Damaged files are left out.

        Args:
            cells: the ids of the cells; None for all.
        """
        files = (self.checkpoint(f, with_state=False) for f in self.files("open"))
        found = [checkpoint for checkpoint in files if checkpoint is not None]
        chosen = [
            own.only(cell for cell in members if cells is None or cell in cells)
            for own, members in zip(found, farthest(found), strict=True)
        ]
        return Checkpoint(
            {cell: far for own in chosen for cell, far in own.cells.items()},
            joined(own.rows for own in chosen),
            joined((own.clients for own in chosen), "clients"),
        )

    def checkpoint(self, file: Path, with_state: bool = True) -> Checkpoint | None:
        """Read a checkpoint; None if it is gone or damaged, which a warning says."""
        try:
            with file.open("rb") as source:
                return Checkpoint.read(source, with_state)
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            warnings.warn(
                f"{file} cannot be read and is left out: {error}", stacklevel=3
            )
            return None

    # Writing

    def take(
        self,
        ends: Sequence[CellEnd],
        rows: pa.Table,
        clients: pa.Table,
        models: Mapping[str, bytes] | None = None,
        states: Mapping[str, bytes] | None = None,
    ) -> list[CellEnd]:
        """Make the ends of cells count, with their rows. All of it is on the disk then.

        Args:
            ends: how the cells ended.
            rows: all rows of these cells.
            clients: all of their rows in the table of clients.
            models: the files of the models that they kept, by their ids.
            states: the files of the states in which they ended, likewise.

        Returns:
            The ends as the ledger has them.
        """
        for place, files in ((self.model, models), (self.state, states)):
            for cell, content in (files or {}).items():
                atomic_write(place(cell), content, durable=True)
        tables = {"rounds": rows, "clients": clients}
        names = {
            folder: self._write_part(folder, own) for folder, own in tables.items()
        }
        there = {f: set(own["cell"].unique().to_pylist()) for f, own in tables.items()}
        taken = [
            end.model_copy(update={f: names[f] for f in TABLES if end.cell in there[f]})
            for end in ends
        ]
        if taken:
            durable_append(self.file("ledger.jsonl"), to_lines(taken))
        if len(self.files("rounds")) > MOST_SMALL_PARTS:
            self.rewrite()
        return taken

    def save(self, pack: str, content: bytes) -> None:
        """Save where the cells of a pack are that go on, in place of what was saved before.

        The file is not synced to the disk: what a power cut spoils is noticed, and its
        cells then begin anew.
        """
        atomic_write(self.file("open", f"{pack}.ckpt"), content)

    def drop_checkpoint(self, pack: str) -> None:
        """Delete the checkpoint of a pack all of whose cells have ended."""
        delete(self.file("open", f"{pack}.ckpt"))

    def _write_part(self, folder: str, table: pa.Table) -> str:
        """Write rows as a part; return its name, which is empty if there are none."""
        content = encoded(table, folder)
        if not content:
            return ""
        name = _name_of_part(content)
        atomic_write(self.part(folder, name), content, durable=True)
        return name

    def forget(self, cells: Set[str] | None) -> None:
        """Delete the results of some cells, or of all if None is given."""
        every = self.lines().ends
        gone = every.keys() if cells is None else every.keys() & cells
        if gone or cells is None:
            self.rewrite(gone)
        for file in [*self.files("models"), *self.files("states")]:
            if cells is None or file.stem in cells:
                delete(file)
        for file in self.files("open"):
            if cells is None:
                delete(file)
            elif (found := self.checkpoint(file)) and found.cells.keys() & cells:
                if left := found.cells.keys() - cells:
                    atomic_write(file, found.only(left).to_bytes())
                else:
                    delete(file)

    def rewrite(self, without: Set[str] = frozenset()) -> None:
        """Put small parts together, and leave out some cells.

        A part that is damaged stays as it is, as long as a cell names it that is not left
        out: `raysafl verify` names it.

        Args:
            without: the cells that are left out.
        """
        every = self.lines().ends
        ends = {cell: end for cell, end in every.items() if cell not in without}
        for folder in TABLES:
            members_of = _by_part(folder, ends)
            for names in self._to_join(_by_part(folder, every), folder, without):
                tables = []
                moved: set[str] = set()
                for name in names:
                    members = members_of.get(name, set())
                    with suppress(ValueError):
                        rows = self.rows_of_part(folder, name)
                        tables.append(of_cells(rows, members))
                        moved |= members
                new = {folder: self._write_part(folder, joined(tables, folder))}
                ends |= {cell: ends[cell].model_copy(update=new) for cell in moved}
        lines = to_lines(ends.values())
        atomic_write(self.file("ledger.jsonl"), lines, durable=True)
        self.tidy()

    def _to_join(
        self, parts: Mapping[str, Set[str]], folder: str, without: Set[str]
    ) -> list[list[str]]:
        """Return parts that are to become one, for each new part."""
        groups: list[list[str]] = [[]]
        size = 0
        for name, members in parts.items():
            file = self.part(folder, name)
            own = file.stat().st_size if file.is_file() else 0
            if own > LARGE_PART and not members & without:
                continue
            if size + own > LARGE_PART:
                groups.append([])
                size = 0
            groups[-1].append(name)
            size += own
        return [names for names in groups if len(names) > 1 or (names and without)]

    def unnamed(self) -> list[Path]:
        """Return the parts that no cell of the ledger names."""
        ends = self.lines().ends.values()
        named = {getattr(end, folder) for end in ends for folder in TABLES}
        files = (file for folder in TABLES for file in self.files(folder))
        return [file for file in files if file.stem not in named]

    def tidy(self) -> None:
        """Delete what counts nowhere: what a crash leaves, and what was replaced."""
        for file in self.unnamed():
            delete(file)
        ends = self.lines().ends
        decided = {cell for cell, end in ends.items() if end.status.decided}
        for file in self.files("open"):
            checkpoint = self.checkpoint(file, with_state=False)
            if checkpoint is None or checkpoint.cells.keys() <= decided:
                delete(file)
        # What `atomic_write` leaves if it is killed.
        for folder in (*PLACES, "tune", "."):
            for file in self.path.glob(f"{folder}/.*.part"):
                delete(file)


def _name_of_part(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:24]


def _by_part(folder: str, ends: Mapping[str, CellEnd]) -> dict[str, set[str]]:
    """Return the cells whose rows are in each part, by the name of the part."""
    found: dict[str, set[str]] = {}
    for cell, end in ends.items():
        if name := str(getattr(end, folder)):
            found.setdefault(name, set()).add(cell)
    return found
