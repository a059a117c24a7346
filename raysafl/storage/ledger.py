"""How each cell ended, in the ledger, and how far those are that go on, in checkpoints.

`ledger.jsonl` consists of lines that are sealed by a SHA-256. A line holds some cells that
ended together, and once what they have in common. Lines are appended; of several entries of
one cell the newest counts.

A checkpoint is the file of a pack that goes on: its cells' rows so far, and their states. It
begins with a sealed line, the head, which says how far each cell is and holds the sizes and the
digests of the sections behind it. So the rows can be read, and checked, without the states,
which may be large.
"""

import datetime
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO, NamedTuple, Self

import pyarrow as pa
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from raysafl.core.component import explain
from raysafl.storage.paths import sealed, sha256_of, unsealed
from raysafl.storage.redaction import redacted
from raysafl.storage.rows import CLIENTS, ROUNDS, of_cells

# The cells of a line; most lines need not be checked to find some cells.
CELL = re.compile(rb'"cell": "([\w-]+)"')
# A line that is damaged costs so many cells at most.
MOST_OF_LINE = 50
# The bytes of the longest head of a checkpoint.
MOST_HEAD = 100_000_000
# What the cells of a line have in common.
SHARED = (
    "rounds clients ended code python raysafl host numpy torch ray commit device engine "
    "divided num_classes"
).split()


class Status(StrEnum):
    """In which state a cell or a run is."""

    # It has not begun, or no process goes on with it.
    WAITING = "waiting"
    # It has begun, and a process goes on with it.
    RUNNING = "running"
    # All rounds were run, or it stopped before, as its own configuration says.
    FINISHED = "finished"
    # A scheduler of Tune's, or a rule to stop, ended it early.
    STOPPED = "stopped"
    # Its parameters became infinite or NaN.
    DIVERGED = "diverged"
    # An error ended it.
    FAILED = "failed"

    @property
    def decided(self) -> bool:
        """Whether another attempt would end in the same way, so that none is made."""
        return self in (Status.FINISHED, Status.STOPPED, Status.DIVERGED)

    @property
    def unended(self) -> bool:
        """Whether it has not ended."""
        return self in (Status.WAITING, Status.RUNNING)

    @property
    def bad(self) -> bool:
        """Whether it gives no final accuracy because something went wrong."""
        return self in (Status.DIVERGED, Status.FAILED)


# From the best state of a cell to the one that says most about its run.
SEVERITY = (
    Status.FINISHED,
    Status.STOPPED,
    Status.WAITING,
    Status.RUNNING,
    Status.DIVERGED,
    Status.FAILED,
)


class CellEnd(BaseModel):
    """How a cell ended: an entry of the ledger (docs/results.md).

    Fields that have their default are not written. Of a cell that has not ended, the same class
    says how far it is; this is never written.

    Args:
        cell: the id of the cell.
        seed: its seed; None for a run that could not be built.
        status: how it ended.
        reason: why, if it did not run all of its rounds.
        traceback: the whole traceback of the error that ended it, without secrets.
        ended: when the entry was made, in UTC (ISO 8601).
        started: when the cell began, in UTC (ISO 8601).
        seconds: its share of the time of its packs, over all attempts.
        rounds: the name of the part with its rows; empty if it has none.
        clients: the same of the table of clients.
        metrics: its last evaluated round, as reported to Tune.
        partition_seed: the seed of its partition.
        kept: the SHA-256 of the file with the model that it kept; empty if it kept none.
        kept_bytes: the number of bytes of this file.
        code: a digest of the code of each of the user's own classes in the run, by name.
        num_classes: the number of classes of its dataset; 0 if it has none.
        over_before: how many rounds were over before the attempt in which it ended.
        python, raysafl, host, numpy, torch, ray, commit, device, engine: with what and where
            it was computed.
        divided: why its pack's requests were divided, if they were.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    cell: str = Field(pattern=r"^[\w-]+$")
    seed: int | None = None
    status: Status
    reason: str = ""
    traceback: str = ""
    ended: str = ""
    started: str = ""
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    rounds: str = Field(default="", pattern=r"^([0-9a-f]{24})?$")
    clients: str = Field(default="", pattern=r"^([0-9a-f]{24})?$")
    metrics: dict[str, Any] = Field(default_factory=dict)
    partition_seed: int | None = None
    kept: str = ""
    kept_bytes: int = Field(default=0, ge=0)
    code: dict[str, str] = Field(default_factory=dict)
    num_classes: int = Field(default=0, ge=0)
    over_before: int = Field(default=0, ge=0)
    python: str = ""
    raysafl: str = ""
    host: str = ""
    numpy: str = ""
    torch: str = ""
    ray: str = ""
    commit: str = ""
    device: str = ""
    engine: str = ""
    divided: str = ""

    @field_validator("metrics")
    @classmethod
    def _has_nan_for_nothing(cls, metrics: dict[str, Any]) -> dict[str, Any]:
        # JSON has no NaN.
        return {name: math.nan if v is None else v for name, v in metrics.items()}

    @classmethod
    def now(cls, cell: str, status: Status, reason: str = "", **more: Any) -> Self:
        """Return the entry of a cell that ends at this moment.

        Args:
            cell: the id of the cell.
            status: how it ended.
            reason: why; secrets of the environment are hidden in it.
            more: further fields; secrets are hidden in the traceback.
        """
        ended = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        texts = {"reason": reason, "traceback": more.pop("traceback", "")}
        shown = {name: redacted(text) for name, text in texts.items() if text}
        return cls(cell=cell, status=status, ended=ended, **shown, **more)


def to_lines(ends: Iterable[CellEnd]) -> bytes:
    """Return the sealed lines that the ledger holds of some cells."""
    groups: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for end in ends:
        fields = end.model_dump(mode="json", exclude_defaults=True)
        shared = {name: fields.pop(name) for name in SHARED if name in fields}
        groups.setdefault(json.dumps(shared), (shared, []))[1].append(fields)
    return b"".join(
        sealed({"shared": shared, "cells": cells[first : first + MOST_OF_LINE]}) + b"\n"
        for shared, cells in groups.values()
        for first in range(0, len(cells), MOST_OF_LINE)
    )


class LedgerLines(NamedTuple):
    """What a ledger holds.

    Args:
        ends: how cells ended, by their ids.
        faults: why lines cannot be read, by their numbers from 1.
    """

    ends: dict[str, CellEnd]
    faults: dict[int, str]


def read_lines(content: bytes, cells: Collection[str] | None = None) -> LedgerLines:
    """Read a ledger. A last line without an end, as a crash leaves one, counts nowhere.

    Args:
        content: the content of the file.
        cells: read only the lines of these cells; None for all.
    """
    ends: dict[str, CellEnd] = {}
    faults: dict[int, str] = {}
    wanted = None if cells is None else {cell.encode() for cell in cells}
    # A last line without an end has been torn.
    *lines, _ = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if wanted is not None and not wanted.intersection(CELL.findall(line)):
            continue
        try:
            fields = json.loads(unsealed(line))
            found = [CellEnd(**{**fields["shared"], **c}) for c in fields["cells"]]
        except ValidationError as error:
            faults[number] = explain(error)
        except ValueError as error:
            faults[number] = str(error)
        else:
            ends |= {e.cell: e for e in found if cells is None or e.cell in cells}
    return LedgerLines(ends, faults)


class HowFar(BaseModel):
    """How far a cell is that has begun and not ended.

    Args:
        seed: its seed.
        round: how many rounds are over.
        rounds: how many it is to have.
        started: when it began, in UTC (ISO 8601).
        seconds: the time that it took so far.
        code: a digest of the code of each of the user's own classes in the run, by name.
        raysafl: the version that computed it.
    """

    model_config = ConfigDict(frozen=True)

    seed: int
    round: int = Field(ge=0)
    rounds: int
    started: str
    seconds: float
    code: dict[str, str] = Field(default_factory=dict)
    raysafl: str = ""

    def as_end(self, cell: str, status: Status) -> CellEnd:
        """Return what is said of the cell as long as it has not ended."""
        return CellEnd(
            cell=cell,
            seed=self.seed,
            status=status,
            reason=f"after {self.round} of {self.rounds} rounds",
            started=self.started,
            seconds=self.seconds,
            code=self.code,
        )


CELLS = TypeAdapter(dict[str, HowFar])


@dataclass(frozen=True)
class Checkpoint:
    """Where the cells of a pack are that go on: one moment of them.

    Args:
        cells: how far each is, by its id.
        rows: their rows so far.
        clients: their rows so far in the table of clients.
        state: the states of their simulations (`raysafl.simulation.checkpoint`); empty if
            it was not read.
    """

    cells: Mapping[str, HowFar]
    rows: pa.Table = field(default_factory=ROUNDS.empty_table)
    clients: pa.Table = field(default_factory=CLIENTS.empty_table)
    state: bytes = b""

    def only(self, cells: Iterable[str]) -> "Checkpoint":
        """Return what is said of some cells, with the states of all."""
        chosen = {cell: self.cells[cell] for cell in cells}
        rows = of_cells(self.rows, chosen)
        return Checkpoint(chosen, rows, of_cells(self.clients, chosen), self.state)

    def to_bytes(self) -> bytes:
        """Return the content of a file."""
        sections = [_written(self.rows), _written(self.clients), self.state]
        head = {
            "cells": CELLS.dump_python(dict(self.cells), mode="json"),
            "sections": [[len(section), sha256_of(section)] for section in sections],
        }
        return b"".join([sealed(head), b"\n", *sections])

    @classmethod
    def read(cls, source: BinaryIO, with_state: bool = True) -> "Checkpoint":
        """Read a file.

        Args:
            source: the opened file, of which no more than is needed is read.
            with_state: whether the states are read, too.

        Raises:
            ValueError: what is read is damaged.
        """
        head: dict[str, Any] = json.loads(
            unsealed(source.readline(MOST_HEAD).rstrip(b"\n"))
        )
        if head.keys() != {"cells", "sections"}:
            raise ValueError("it is no checkpoint")
        sections = []
        for size, digest in head["sections"][: 3 if with_state else 2]:
            section = source.read(size)
            if sha256_of(section) != digest:
                raise ValueError("its SHA-256 does not fit its content")
            sections.append(section)
        rows, clients, *state = sections
        cells = CELLS.validate_python(head["cells"])
        return cls(cells, _read(rows), _read(clients), state[0] if state else b"")


def farthest(checkpoints: Sequence[Checkpoint]) -> list[list[str]]:
    """Return for each checkpoint the cells of which no other one is farther.

    A cell may be in several, as packs may have been formed anew. It is returned once.
    """
    best: dict[str, int] = {}
    for number, checkpoint in enumerate(checkpoints):
        for cell, far in checkpoint.cells.items():
            before = best.get(cell)
            if before is None or far.round > checkpoints[before].cells[cell].round:
                best[cell] = number
    found: list[list[str]] = [[] for _ in checkpoints]
    for cell, number in best.items():
        found[number].append(cell)
    return found


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _read(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
