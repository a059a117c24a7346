"""The ledger: how each cell ended, when, where, and with which software.

`ledger.jsonl` consists of lines that are sealed by a SHA-256. A line holds some cells that
ended together, and once what they have in common. Lines are appended; of several entries of
one cell the newest counts.
"""

import datetime
import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from raysafl.core.component import explain
from raysafl.storage.paths import sealed, unsealed
from raysafl.storage.redaction import redacted

# The cells of a line; most lines need not be checked to find some cells.
CELL = re.compile(rb'"cell": "([\w-]+)"')
# A line that is damaged costs so many cells at most.
MOST_OF_LINE = 50
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
            found = _ends_in(line)
        except ValidationError as error:
            faults[number] = explain(error)
        except ValueError as error:
            faults[number] = str(error)
        else:
            ends |= {e.cell: e for e in found if cells is None or e.cell in cells}
    return LedgerLines(ends, faults)


def _ends_in(line: bytes) -> list[CellEnd]:
    """Return the entries in a line."""
    fields = json.loads(unsealed(line))
    shared = fields["shared"]
    return [CellEnd.model_validate({**shared, **own}) for own in fields["cells"]]


def worst(ends: Sequence[CellEnd]) -> CellEnd:
    """Return the entry that stands for all cells of a run.

    It is the first of the worst status, if possible of those that say why.
    """
    return max(ends, key=lambda end: (SEVERITY.index(end.status), bool(end.reason)))


def reason_of(ends: Sequence[CellEnd]) -> str:
    """Return why a run's cells did not run all of their rounds, and how many; mostly empty."""
    first = worst(ends)
    alike = sum(end.status is first.status and bool(end.reason) for end in ends)
    if not first.reason or len(ends) == 1:
        return first.reason
    return f"{alike} of {len(ends)} seeds: {first.reason}"
