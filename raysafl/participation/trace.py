"""Recorded availability: the intervals of rounds in which each client is available."""

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from raysafl.core.participation import Cohorts, PicksTogether
from raysafl.core.randomness import Keys
from raysafl.core.text import nearest
from raysafl.participation.sampling import Ints, Most, at_most, check_m, of_one_size

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("client", "start", "end")


def _read_trace(file: str) -> tuple[bytes, str]:
    """Return the content of a file, and its SHA-256."""
    try:
        content = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise _unreadable(file, error.strerror) from error
    return content, hashlib.sha256(content).hexdigest()


def _unreadable(file: str, why: object) -> ValueError:
    return ValueError(
        f"the trace {file} cannot be read ({why}); give a CSV or Parquet file with the "
        f"columns {', '.join(COLUMNS)}"
    )


@lru_cache(maxsize=16)
def intervals(
    file: str, sha256: str, round_seconds: float | None = None
) -> tuple[Ints, tuple[str, ...]]:
    """Read the intervals of a trace.

    Args:
        file: the path of a CSV or Parquet file.
        sha256: the SHA-256 that its content must have.
        round_seconds: the seconds of a round; None: the file counts rounds.

    Returns:
        An array [n, 3] of (client, start, end), sorted by start; and the names of the
        clients whose positions it holds, or none if it holds the ids of clients.

    Raises:
        ValueError: the file is missing, is no table, lacks a column, or has another
            SHA-256; a client has no name; a value is no whole number; an interval is
            empty or before round 0.
    """
    # Imported here, because pandas takes some tenths of a second to import.
    import pandas as pd

    content, found = _read_trace(file)
    if found != sha256:
        raise ValueError(
            f"the trace {file} has changed: its SHA-256 is {found}, but the run was made "
            f"with {sha256}. Restore the file, or leave sha256 empty for a new run"
        )
    try:
        read = pd.read_parquet if Path(file).suffix == ".parquet" else pd.read_csv
        frame = read(io.BytesIO(content))[list(COLUMNS)]
    # A damaged file may raise any kind of error.
    except Exception as error:
        raise _unreadable(file, error) from error
    return _valid(file, frame, round_seconds)


def _valid(
    file: str, frame: "pd.DataFrame", round_seconds: float | None
) -> tuple[Ints, tuple[str, ...]]:
    """Check every row and return the intervals, in rounds."""
    import pandas as pd

    names: tuple[str, ...] = ()
    numbered = frame
    # Text is names, which are numbered in their order.
    if not pd.api.types.is_numeric_dtype(frame["client"]):
        codes, texts = pd.factorize(frame["client"], sort=True)
        names = tuple(map(str, texts))
        numbered = frame.assign(client=np.where(codes < 0, np.nan, codes))
    numbers = numbered.apply(pd.to_numeric, errors="coerce").to_numpy(float, copy=True)
    if not len(numbers):
        raise ValueError(f"the trace {file} has no intervals")
    good = numbers[:, 1] < numbers[:, 2]
    if round_seconds is not None:
        numbers[:, 1:] -= np.fmin.reduce(numbers[:, 1])
        numbers[:, 1:] = np.ceil(numbers[:, 1:] / round_seconds)
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
    good &= whole.all(axis=1) & (0 <= numbers[:, 1])
    if not good.all():
        row = int(np.argmin(good))
        values = ", ".join(f"{name} = {frame.iloc[row][name]}" for name in COLUMNS)
        raise ValueError(
            f"the trace {file}, row {row}, has {values}: client (unless it is a name), start and "
            "end must be whole numbers (any numbers with round_seconds), and 0 <= start < end "
            "(end is exclusive)"
        )
    table: Ints = numbers[np.argsort(numbers[:, 1], kind="stable")].astype(np.int64)
    # Seconds may lie between the beginnings of two rounds.
    table = table[table[:, 1] < table[:, 2]]
    # The array is cached and shared.
    table.flags.writeable = False
    return table, names


class Trace(PicksTogether):
    """Clients participate when a recorded trace says that they were available.

    The trace is a CSV or Parquet file with the columns `client`, `start` and `end`
    (rounds from 0; `end` itself is outside). Numbers in the column `client` are ids,
    from 0. Text is names, where the data name their clients: the values of `ByColumn`,
    or "user 7" under `ByUser`. A name stays that of the same client if another client
    is added or lost, and an id does not. Names that look like numbers must be text in
    Parquet, as those of a CSV file would be ids. A client may have many rows, and
    they may overlap. A round without any interval has no participants. After the last
    `end` the trace starts over, so that it serves a run of any length.

    With `round_seconds`, `start` and `end` are seconds, from any origin: round 0 begins at
    the earliest start, and a client is available in the rounds that begin in one of its
    intervals.

    The SHA-256 of the file's content is part of a run's id: the same file name with
    other content is another run. Every machine that runs trials must have the file.
    """

    file: str = Field(description="Path of the CSV or Parquet file.")
    round_seconds: float | None = Field(
        default=None,
        gt=0,
        exclude_if=lambda seconds: seconds is None,
        description="Seconds of a round; None: `start` and `end` are rounds.",
    )
    m: Most = None
    sha256: str = Field(
        default="",
        description="SHA-256 of the file's content; filled in if it is empty.",
    )
    # The id of each client that the trace names; None before the data are known.
    _ids: Ints | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _fill_sha256(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("file") and not value.get("sha256"):
            file = str(value["file"])
            return {**value, "file": file, "sha256": _read_trace(file)[1]}
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
        rows, names = intervals(self.file, self.sha256, self.round_seconds)
        ids = rows[:, 0]
        unknown = sorted(set(ids[(ids < 0) | (ids >= num_clients)].tolist()))
        if unknown and not names:
            raise ValueError(
                f"the trace {self.file} has unknown clients {unknown[:10]}; "
                f"ids go from 0 to {num_clients - 1}, and names must be text"
            )

    def for_clients(self, names: Callable[[], Sequence[str]]) -> Self:
        """Return the trace with the ids of the clients that it names.

        Raises:
            ValueError: A client has a name that none of the data's clients has.
        """
        _, named = intervals(self.file, self.sha256, self.round_seconds)
        if not named or self._ids is not None:
            return self
        ids = {name: i for i, name in enumerate(names())}
        for name in named:
            if name not in ids:
                raise ValueError(
                    f"the trace {self.file} names '{name}', which is no client with "
                    f"training samples: {nearest(name, ids)}; correct the name, leave its "
                    "rows out, or take data.partition=ByColumn(...) or ByUser(), by which "
                    "clients have names"
                )
        known = self.model_copy()
        known._ids = np.array([ids[name] for name in named], np.int64)
        return known

    def choose(
        self, states: Sequence[Any], num_clients: int, keys: Keys
    ) -> tuple[list[Any], Cohorts]:
        """Return the clients that have an interval around this round."""
        # The trace starts over after its last round.
        rows, names = intervals(self.file, self.sha256, self.round_seconds)
        client, start, end = rows.T
        if names:
            assert self._ids is not None, "for_clients is called first"
            client = self._ids[client]
        t = keys.round % end.max()
        there_RM = np.tile(
            np.unique(client[(start <= t) & (t < end)]), (len(states), 1)
        )
        return list(states), at_most(of_one_size(there_RM), self.m, keys)
