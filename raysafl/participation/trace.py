"""Recorded availability: the intervals of rounds in which each client is available."""

import hashlib
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, model_validator

from raysafl.core.participation import Cohort, Participation
from raysafl.core.randomness import Key
from raysafl.core.text import nearest
from raysafl.participation.sampling import Ints, Most, at_most, check_m

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("client", "start", "end")


def _content(file: str) -> bytes:
    """Read the file, or raise a ValueError that says which columns it should have."""
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(
            f"the trace {file} cannot be read ({error.strerror}); give a CSV or Parquet file with "
            f"the columns {', '.join(COLUMNS)}"
        ) from error


@lru_cache(maxsize=16)
def intervals(file: str, sha256: str) -> Ints:
    """Read the intervals of a trace, sorted by their start.

    Args:
        file: the path of a CSV or Parquet file.
        sha256: the SHA-256 that its content must have.

    Returns:
        An array [n, 3] of (client, start, end).

    Raises:
        ValueError: the file is missing, is no table, or has another SHA-256; a column
            is missing; a value is no whole number; an interval is empty or before round
            0.
    """
    # Imported here, because pandas takes some tenths of a second to import.
    import pandas as pd

    content = _content(file)
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise ValueError(
            f"the trace {file} has changed: its SHA-256 is {found}, but the run was made "
            f"with {sha256}. "
            "Restore the file, or leave sha256 empty for a new run"
        )
    try:
        read = pd.read_parquet if Path(file).suffix == ".parquet" else pd.read_csv
        frame = read(io.BytesIO(content))
    # A damaged file may raise any kind of error.
    except Exception as error:
        raise ValueError(
            f"the trace {file} is no CSV or Parquet table: {error}"
        ) from error
    for name in COLUMNS:
        if name not in frame:
            raise ValueError(
                f"the trace {file} has no column '{name}': {nearest(name, map(str, frame))}"
            )
    return _valid(file, frame[list(COLUMNS)])


def _valid(file: str, frame: "pd.DataFrame") -> Ints:
    """Check every row and return the intervals as whole numbers, sorted by start."""
    import pandas as pd

    numbers = frame.apply(pd.to_numeric, errors="coerce").to_numpy(float)
    if not len(numbers):
        raise ValueError(
            f"the trace {file} has no intervals, so nobody would ever come"
        )
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
    wrong = {
        "client, start and end must be whole numbers": ~whole.all(axis=1),
        "an interval starts before round 0": numbers[:, 1] < 0,
        "an interval ends before it has begun (end is exclusive)": numbers[:, 2]
        <= numbers[:, 1],
    }
    for told, rows in wrong.items():
        if rows.any():
            row = int(np.argmax(rows))
            values = ", ".join(f"{name} = {frame.iloc[row][name]}" for name in COLUMNS)
            raise ValueError(f"the trace {file}, row {row}: {told}: {values}")
    table: Ints = numbers[np.argsort(numbers[:, 1], kind="stable")].astype(np.int64)
    # The array is cached and shared.
    table.flags.writeable = False
    return table


class Trace(Participation):
    """Clients come when a recorded trace says that they were available.

    The trace is a CSV or Parquet file with the columns `client` (from 0), `start` and
    `end` (rounds from 0; `end` itself is outside). A client may have many rows, and
    they may overlap. In a round without any, nobody comes. After the last `end` the
    trace starts over, so that it serves a run of any length.

    The SHA-256 of the file's content is part of a run's id: the same file name with
    other content is another run. Every machine that runs trials must have the file.
    """

    file: str = Field(description="Path of the CSV or Parquet file.")
    m: Most = None
    sha256: str = Field(
        default="",
        description="SHA-256 of the file's content; filled in if it is empty.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_sha256(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("file") and not value.get("sha256"):
            file = str(value["file"])
            return {
                **value,
                "file": file,
                "sha256": hashlib.sha256(_content(file)).hexdigest(),
            }
        return value

    def replace(
        self, changes: Mapping[str, Any] | None = None, /, **fields: Any
    ) -> Self:
        """Return a validated copy; another file gets its own SHA-256."""
        new = {**(changes or {}), **fields}
        return super().replace({"sha256": "", **new} if "file" in new else new)

    def check(self, num_clients: int) -> None:
        """Raise ValueError if a client is unknown."""
        check_m(self.m, num_clients)
        table = intervals(self.file, self.sha256)
        ids = table[:, 0]
        if unknown := sorted(set(ids[(ids < 0) | (ids >= num_clients)].tolist())):
            raise ValueError(
                f"the trace {self.file} has unknown clients {unknown[:10]}; "
                f"ids go from 0 to {num_clients - 1}"
            )

    def pick(
        self, state: Any, num_clients: int, key: Key, accuracy: float | None
    ) -> tuple[Any, Cohort]:
        """Return the clients that have an interval around this round."""
        # The trace starts over after its last round.
        client, start, end = intervals(self.file, self.sha256).T
        t = key.round % end.max()
        there = np.unique(client[(start <= t) & (t < end)])
        return state, Cohort(at_most(there, self.m, key))
