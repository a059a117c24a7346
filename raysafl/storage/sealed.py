"""Lines and files that say by a SHA-256 whether they are whole.

A sealed object is a JSON object whose first field, `sha256`, is the digest of the object
without that field. The manifest is one, and the ledger consists of lines that are. The
file of an open run begins with one, which holds the sizes and the digests of the
sections behind it: so its rows can be read, and checked, without the state of the
simulation, which may be large.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

SEAL = re.compile(rb'\{"sha256": "([0-9a-f]{64})", ')
# The bytes of the longest head of an open run's file.
MOST_HEAD = 10_000_000


def seal(body: bytes) -> bytes:
    """Return the text of a JSON object, which is not empty, with its seal.

    Example:
        >>> unsealed(seal(b'{"run_id": "a"}'))
        b'{"run_id": "a"}'
    """
    return b'{"sha256": "%s", ' % _digest(body).encode() + body[1:]


def sealed(fields: Mapping[str, Any]) -> bytes:
    """Return fields as a sealed line, without the end of the line."""
    return seal(json.dumps(fields).encode())


def unsealed(content: bytes) -> bytes:
    """Return the text of a sealed JSON object, without its seal.

    Raises:
        ValueError: the content is not as it was written.
    """
    found = SEAL.match(content)
    if found is None:
        raise ValueError("it begins with no SHA-256")
    body = b"{" + content[found.end() :]
    if _digest(body) != found[1].decode():
        raise ValueError("its SHA-256 does not fit its content")
    return body


@dataclass(frozen=True)
class OpenState:
    """What the file of a run holds that has not ended: one moment of it.

    Args:
        about: JSON values of whoever carries out the run.
        rows: its rows so far.
        clients: its rows so far in the table of clients.
        state: the state of its simulation.
    """

    about: Mapping[str, Any]
    rows: pa.Table
    clients: pa.Table
    state: bytes


def dump_open(run_id: str, content: OpenState) -> bytes:
    """Return the content of an open run's file."""
    sections = [_written(content.rows), _written(content.clients), content.state]
    head = {
        "run_id": run_id,
        "about": content.about,
        "sections": [[len(section), _digest(section)] for section in sections],
    }
    return b"".join([sealed(head), b"\n", *sections])


def load_head(source: BinaryIO, run_id: str) -> dict[str, Any]:
    """Read the head of an open run's file, which holds `about`.

    Args:
        source: the opened file, which is then at its first section.
        run_id: the run that the file is named after.

    Raises:
        ValueError: the head is damaged, or the file is that of another run.
    """
    head: dict[str, Any] = json.loads(
        unsealed(source.readline(MOST_HEAD).rstrip(b"\n"))
    )
    if not head.keys() >= {"run_id", "about", "sections"}:
        raise ValueError("it is no file of an open run")
    if head["run_id"] != run_id:
        raise ValueError(
            f"it belongs to run {head['run_id']}, and this is run {run_id}"
        )
    return head


def load_open(source: BinaryIO, run_id: str, with_state: bool = True) -> OpenState:
    """Read an open run's file.

    Args:
        source: the opened file.
        run_id: the run that the file is named after.
        with_state: whether the state is read too; it is empty otherwise.

    Raises:
        ValueError: what is read of the file is damaged, or belongs to another run.
    """
    head = load_head(source, run_id)
    sections = []
    for size, digest in head["sections"][: 3 if with_state else 2]:
        section = source.read(size)
        if _digest(section) != digest:
            raise ValueError("its SHA-256 does not fit its content")
        sections.append(section)
    rows, clients, *state = sections
    return OpenState(
        head["about"], _read(rows), _read(clients), state[0] if state else b""
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _written(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _read(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()
