"""Turns the rows of runs into what MLflow stores: curves, final statistics, and their times."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysafl.core.record import FURTHER_NAME, Column, Summary, columns_with
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.statistics import ACCURACY, FIXED, summarise_each

Ints = NDArray[np.int64]

MEANS = columns_with(Summary.MEAN)
SUMS = columns_with(Summary.SUM)
# These and the further ones are logged with their standard deviation over replicates.
STATISTICS = ["final", "last5", "last10", "rolling20", "best", "after_server"]


class Curves(NamedTuple):
    """The curves of a run: a line for each evaluated round.

    Args:
        rounds: the numbers of the rounds, [lines].
        times: the milliseconds from the start of the run to the end of each, [lines].
        values: the points, which may be NaN, [lines, names].
        names: the names of the curves.
    """

    rounds: Ints
    times: Ints
    values: NDArray[np.float64]
    names: list[str]

    @property
    def last_round(self) -> int:
        """The last round that has a line; -1 if there is none."""
        return int(self.rounds[-1]) if len(self.rounds) else -1

    def kept(self, k: int, ended: bool) -> "Curves":
        """Return every k-th line.

        Args:
            k: the distance of lines.
            ended: whether the last line is kept in any case.
        """
        keep = np.arange(1, len(self.rounds) + 1) % k == 0
        if ended:
            keep[-1:] = True
        return self._only(keep)

    def after(self, round: int) -> "Curves":
        """Return the lines of the rounds after a round."""
        return self._only(self.rounds > round)

    def first(self, count: int) -> "Curves":
        """Return the first lines."""
        return self._only(np.arange(len(self.rounds)) < count)

    def _only(self, which: NDArray[np.bool_]) -> "Curves":
        rounds, times, values = (part[which] for part in self[:3])
        return Curves(rounds, times, values, self.names)


NO_CURVES = Curves(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0)), [])


def curves(rows: pd.DataFrame) -> dict[str, Curves]:
    """Return the curves of many runs, by run id; runs without rows have none.

    A point is the mean over the replicates that have the round, or their standard
    deviation. Columns that add up over rounds are the mean over replicates of their
    running sum.

    Args:
        rows: the rows of the runs, sorted by run, replicate and round.
    """
    if rows.empty:
        return {}
    means = [*MEANS, *further_of_rows(rows)]
    names = [*means, *(f"{name}_std" for name in means), *SUMS]
    run = _numbers(rows, ["run_id"])
    keys = [run, rows["round"].to_numpy()]
    lines = rows.groupby(keys)
    running = rows[SUMS].groupby([run, rows["replicate"].to_numpy()]).cumsum()
    parts = (lines[means].mean(), lines[means].std(), running.groupby(keys).mean())
    values = np.concatenate([part.to_numpy(float) for part in parts], axis=1)

    seconds = lines["seconds"].max().fillna(0.0)
    of_run = seconds.index.get_level_values(0).to_numpy()
    times = (1000 * seconds.groupby(of_run).cumsum()).to_numpy().astype(np.int64)
    rounds = seconds.index.get_level_values(1).to_numpy().astype(np.int64)
    firsts = np.flatnonzero(np.diff(of_run)) + 1
    each = (np.split(part, firsts) for part in (rounds, times, values))
    return {
        run_id: Curves(*own, names)
        for run_id, *own in zip(rows["run_id"].unique(), *each, strict=False)
    }


def further_of_rows(rows: pd.DataFrame) -> list[str]:
    """Return the names of the further columns of rows."""
    names = [str(name) for name in rows if name not in MEANS]
    return [name for name in names if FURTHER_NAME.fullmatch(name)]


def final_statistics(
    rows: pd.DataFrame,
    columns: Mapping[str, Column] | None = None,
    quality: str = ACCURACY,
) -> dict[str, dict[str, float]]:
    """Return the statistics of many runs, by run id; runs without rows have none.

    They are means over replicates, some with the standard deviation as `..._std`.

    Args:
        rows: the rows of the runs, sorted by run, replicate and round.
        columns: what is known about the further columns of the rows, by name.
        quality: the column by which the runs are judged.
    """
    if rows.empty:
        return {}
    lengths = np.bincount(_numbers(rows, ["run_id", "replicate"]))
    parts = summarise_each(rows, lengths, columns, quality)
    run_ids = rows["run_id"].to_numpy()[np.cumsum(lengths) - 1]
    of_run = parts.groupby(run_ids)
    further = [name for name in parts if name not in FIXED]
    spread = of_run[[*STATISTICS, *further]].std().add_suffix("_std")
    # `last5_std` is the spread over replicates here, not FAST's over rounds.
    found = of_run.mean()
    found[spread.columns] = spread
    return dict(zip(found.index, found.to_dict("records"), strict=True))


def digest(rows: pd.DataFrame, through: int) -> str:
    """Return a fingerprint of a run's rows up to a round, by which changed rows are noticed."""
    some = rows[rows["round"] <= through]
    # A column that the run does not have is left out, so the fingerprints of runs
    # without further columns stay what they are.
    further = [name for name in further_of_rows(rows) if some[name].notna().any()]
    columns = some[["replicate", "round", *MEANS, *SUMS, *sorted(further)]]
    return hashlib.sha256(columns.to_numpy(dtype="float64").tobytes()).hexdigest()[:16]


def started(ending: LedgerEntry | None) -> int | None:
    """Return when a run started, in milliseconds since 1970; None if it is not known."""
    try:
        when = datetime.fromisoformat(ending.started if ending else "")
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return int(1000 * when.timestamp())


def _numbers(rows: pd.DataFrame, columns: list[str]) -> Ints:
    """Number the groups of equal values that follow one another, from 0; one number a row."""
    new = np.zeros(len(rows), bool)
    for name in columns:
        values: NDArray[Any] = rows[name].to_numpy()
        new[1:] |= values[1:] != values[:-1]
    return np.cumsum(new)
