"""The file of a pack that goes on: its cells' rows so far, and their states.

It begins with a sealed line, the head, which says how far each cell is and holds the sizes
and the digests of the sections behind it. So the rows can be read, and checked, without
the states, which may be large.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.paths import sealed, sha256_of, unsealed
from raysafl.storage.rows import of_cells

# The bytes of the longest head.
MOST_HEAD = 100_000_000


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
    rows: pa.Table
    clients: pa.Table
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
