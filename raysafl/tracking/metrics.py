"""Turns the rows of runs into what MLflow stores: curves, final statistics, and their times."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from raysafl.core.record import FURTHER_NAME, Column, Summary, columns_with
from raysafl.storage.manifest import Table
from raysafl.storage.statistics import ACCURACY, summarise_each

if TYPE_CHECKING:
    import pandas as pd

Ints = NDArray[np.int64]

MEANS = columns_with(Summary.MEAN)
SUMS = columns_with(Summary.SUM)
# The groups of curves that measure quality; all others measure what it took.
GROUPS = ("test", "train", "val", "clients")
WORK = "work"
# A run has this statistic in MLflow whatever the sweep's table shows: what it cost.
COST = "total_bytes"


def metric_name(column: str) -> str:
    """Return the name in MLflow of the curve of a column of `rounds/`.

    MLflow draws a section of charts for each word before a `/`, in the order of the
    alphabet, and a last section for the names without one. So quality comes first, then
    what it took, and the single values of the final statistics come last.

    Example:
        >>> metric_name("test_accuracy"), metric_name("val_mae"), metric_name("steps")
        ('test/accuracy', 'val/mae', 'work/steps')
    """
    group, _, rest = column.partition("_")
    return f"{group}/{rest}" if group in GROUPS else f"{WORK}/{column}"


def shown_statistics(table: Table) -> list[str]:
    """Return the names of the final statistics that MLflow gets as metrics.

    They are those of the sweep's table. MLflow draws a bar for each on a run's page, so
    the others are in the file `statistics.json` of the run.
    """
    return list(dict.fromkeys([table.statistic, *table.also, COST]))


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

    def _only(self, which: NDArray[np.bool_]) -> "Curves":
        return Curves(
            self.rounds[which], self.times[which], self.values[which], self.names
        )


NO_CURVES = Curves(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 0)), [])


def curves(rows: "pd.DataFrame") -> dict[str, Curves]:
    """Return the curves of many runs, by run id; runs without rows have none.

    A point is the mean over the replicates that have the round. Columns that add up
    over rounds are the mean over replicates of their running sum.

    Args:
        rows: the rows of the runs, sorted by run, replicate and round.
    """
    if rows.empty:
        return {}
    means = [*MEANS, *further_of_rows(rows)]
    names = [*means, *SUMS]
    run = _numbers(rows, ["run_id"])
    keys = [run, rows["round"].to_numpy()]
    lines = rows.groupby(keys)
    running = rows[SUMS].groupby([run, rows["replicate"].to_numpy()]).cumsum()
    parts = (lines[means].mean(), running.groupby(keys).mean())
    values = np.concatenate([part.to_numpy(float) for part in parts], axis=1)

    seconds = lines["seconds"].max().fillna(0.0)
    of_run = seconds.index.get_level_values(0).to_numpy()
    times = (1000 * seconds.groupby(of_run).cumsum()).to_numpy().astype(np.int64)
    rounds = seconds.index.get_level_values(1).to_numpy().astype(np.int64)
    firsts = np.flatnonzero(np.diff(of_run)) + 1
    each = (np.split(part, firsts) for part in (rounds, times, values))
    return {
        run_id: Curves(own_rounds, own_times, own_values, names)
        for run_id, own_rounds, own_times, own_values in zip(
            rows["run_id"].unique(), *each, strict=False
        )
    }


def further_of_rows(rows: "pd.DataFrame") -> list[str]:
    """Return the names of the further columns of rows."""
    names = [str(name) for name in rows if name not in MEANS]
    return [name for name in names if FURTHER_NAME.fullmatch(name)]


class Spread(NamedTuple):
    """A statistic over the replicates of a run.

    Args:
        mean: its mean.
        std: its standard deviation (n - 1); NaN for one replicate.
    """

    mean: float
    std: float


def final_statistics(
    rows: "pd.DataFrame",
    columns: Mapping[str, Column] | None = None,
    quality: str = ACCURACY,
) -> dict[str, dict[str, Spread]]:
    """Return the statistics of many runs, by run id; runs without rows have none.

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
    means = of_run.mean()
    stds = of_run.std().to_dict("records")
    return {
        str(run_id): {str(n): Spread(mean, std[n]) for n, mean in own.items()}
        for run_id, own, std in zip(
            means.index, means.to_dict("records"), stds, strict=True
        )
    }


def digest(rows: "pd.DataFrame", through: int) -> str:
    """Return a fingerprint of a run's rows up to a round, by which changed rows are noticed."""
    some = rows[rows["round"] <= through]
    # A column that the run does not have is left out, so the fingerprints of runs
    # without further columns stay what they are.
    further = [name for name in further_of_rows(rows) if some[name].notna().any()]
    columns = some[["replicate", "round", *MEANS, *SUMS, *sorted(further)]]
    return hashlib.sha256(columns.to_numpy(dtype="float64").tobytes()).hexdigest()[:16]


def milliseconds(when: str) -> int:
    """Return a time in ISO 8601 as milliseconds since 1970; 0 if it is none."""
    try:
        time = datetime.fromisoformat(when)
    except ValueError:
        return 0
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(1000 * time.timestamp())


def _numbers(rows: "pd.DataFrame", columns: list[str]) -> Ints:
    """Number the groups of equal values that follow one another, from 0; one number a row."""
    new = np.zeros(len(rows), bool)
    for name in columns:
        values: NDArray[Any] = rows[name].to_numpy()
        new[1:] |= values[1:] != values[:-1]
    return np.cumsum(new)
