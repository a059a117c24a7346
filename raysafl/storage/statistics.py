"""The statistics of runs: numbers that summarise the rows of each replicate.

Every run has the `STATISTICS`, but those `BY_NAME` only where they are asked for. A run with
further columns has further statistics, which `statistics_of` derives from the declarations of
its columns.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from raysafl.core.record import (
    COLUMNS,
    FURTHER_NAME,
    VIRTUAL_SECONDS,
    ColumnDescription,
    Summary,
    columns_with,
)

if TYPE_CHECKING:
    import pandas as pd
    from pandas.core.groupby import SeriesGroupBy

    Floats = pd.Series[float]
    Groups = SeriesGroupBy[float, Any]

Ints = NDArray[np.int64]
# Number of evaluations over which FSL smooths.
SMOOTH = 20
TOTALS = columns_with(Summary.SUM)
# The column by which runs are judged unless their objective says otherwise.
ACCURACY = "test_accuracy"


@dataclass(frozen=True)
class Statistic:
    """What is known about a statistic of a run.

    Args:
        meaning: what it is, as one phrase.
        is_fraction: whether it is a fraction in [0, 1], shown in per cent.
        higher_is_better: whether a higher value is better than a lower one.
        column: the column of the rows that it is a value of; empty for counts, times
            and the like.
        is_count: whether it is an integer, which a replicate without rows has as 0.
    """

    meaning: str
    is_fraction: bool = False
    higher_is_better: bool = True
    column: str = ""
    is_count: bool = False


_accuracy = partial(Statistic, is_fraction=True, column=ACCURACY)
_lower = partial(Statistic, higher_is_better=False)
# The statistics of the test accuracy, which runs without one do not have.
OF_ACCURACY = {
    "final": _accuracy("test accuracy of the last evaluated round"),
    "last5": _accuracy("mean test accuracy of the last five evaluated rounds (FAST)"),
    "last5_std": _lower(
        "standard deviation of the last five test accuracies (FAST's spread)",
        is_fraction=True,
    ),
    "last10": _accuracy("mean test accuracy of the last ten evaluated rounds"),
    "rolling20": _accuracy(
        "mean test accuracy of the last twenty evaluated rounds (FSL)"
    ),
    "best": _accuracy("highest test accuracy of all rounds"),
    "best5": _accuracy(
        "mean over the five offsets of the highest test accuracy of every fifth round"
    ),
    "best_round": Statistic("first round with the highest test accuracy, from 0"),
    "after_server": _accuracy(
        "mean test accuracy right after the rounds of the server alone"
    ),
    "rise_time": _lower("rounds until the test accuracy is at 90 % of the final"),
    "rise_time20": _lower(
        "the same on the accuracy's rolling mean over twenty evaluations (FSL)"
    ),
}
# What single papers print: it is computed only if it is asked for by name.
BY_NAME = ("rolling20", "best5", "rise_time20")
# The statistics that every run has, in the order of the columns of runs.parquet.
STATISTICS = {
    "rounds": Statistic("rounds run", is_count=True),
    **OF_ACCURACY,
    "final_loss": _lower("test loss of the last evaluated round", column="test_loss"),
    "arbitrary_ratio": Statistic(
        "share of rounds in which clients trained and which were no snapshots (FAST's "
        "Ratio)",
        is_fraction=True,
    ),
    **{f"total_{n}": _lower(COLUMNS[n].total, is_count=True) for n in TOTALS},
    "total_bytes": _lower("bytes to and from clients", is_count=True),
}
ACCURACIES = [name for name, known in OF_ACCURACY.items() if known.column == ACCURACY]
# With what the names of statistics begin that not every replicate reaches.
UNTIL = ("rounds_to_", f"{VIRTUAL_SECONDS}_to_")
# How many rounds, or virtual seconds, it takes until a metric is at a value, such as
# `rounds_to_r2_0.7`; without a metric, until the test accuracy is at so many per cent.
ROUNDS_TO = re.compile(
    rf"(?:{'|'.join(UNTIL)})(?:([a-z]\w*)_)?(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
)
AT_BEST_VAL = "at_best_val"
# Largest number of last values of further metrics that a table shows by default.
MOST_ALSO = 8


def final_of(statistic: str) -> str:
    """Return the last round's statistic beside one whose round the test set has chosen.

    It is empty for other statistics.

    Example:
        >>> final_of("best5"), final_of("best_rmse"), final_of("last10")
        ('final', 'final_rmse', '')
    """
    if statistic in ("best", "best5"):
        return "final"
    column = statistic.removeprefix("best_")
    other = column.startswith(("val_", "train_", "clients_")) or column == "round"
    return "" if other or column == statistic else f"final_{column}"


def default_unit(statistic: str, is_fraction: bool) -> tuple[float, str]:
    """Return the factor and the unit in which a statistic is shown by default.

    Example:
        >>> default_unit("final", True), default_unit("total_bytes", False)
        ((100.0, '%'), (1e-06, 'MB'))
    """
    if is_fraction:
        return 100.0, "%"
    return (1e-6, "MB") if statistic.startswith("total_bytes") else (1.0, "")


def declaration_of(
    name: str, columns: Mapping[str, ColumnDescription]
) -> ColumnDescription | None:
    """Return what is known about a column, or None if nothing is.

    A metric of each class has one column per class. If the number of classes is not
    known when the columns are declared, only those of the first classes are. So a column
    that is not declared is taken to be like one whose name differs in its number alone.

    Example:
        >>> first = ColumnDescription("float64", "accuracy of class 0", Summary.MEAN)
        >>> declaration_of("test_accuracy_of_7", {"test_accuracy_of_0": first}).meaning
        'accuracy of class 7'

    Args:
        name: the column.
        columns: the declared columns, by name.
    """
    if name in COLUMNS or name in columns:
        return COLUMNS.get(name) or columns[name]
    number = re.search(r"(?<=_)\d+$", name)
    if number is None:
        return None
    stem = name[: number.start()]
    for other, column in columns.items():
        if re.fullmatch(rf"{re.escape(stem)}\d+", other):
            declared = other.removeprefix(stem)
            meaning = re.sub(rf"\b{declared}\b", number[0], column.meaning)
            return replace(column, meaning=meaning)
    return None


def statistics_of(
    columns: Mapping[str, ColumnDescription],
    quality: str = ACCURACY,
    measured: Collection[str] = (),
) -> dict[str, Statistic]:
    """Return all statistics of runs with some further columns, by name.

    A column `test_m` of numbers has the statistics `final_m`, `last5_m` and `best_m`. A
    column `val_m` (or `train_m`, `clients_m`) has `final_val_m` and `best_val_m`. If
    there is validation data, `at_best_val` is the quality on the test set in the first
    round in which the quality on the validation data was best.

    Args:
        columns: the declared columns, by name.
        quality: the column by which a model is judged.
        measured: the names of the columns of the rows, which may have columns of
            further classes (`declaration_of`).

    Raises:
        ValueError: two columns would have a statistic of the same name.
    """
    statistics = dict(STATISTICS)
    # Of the time, only the sum is a statistic.
    known_otherwise = {*COLUMNS, VIRTUAL_SECONDS}
    names = [name for name in (*columns, *measured) if name not in known_otherwise]
    # The loss has further statistics if it is all that runs are judged by.
    names += ["test_loss"] if quality == "test_loss" else []
    for name in dict.fromkeys(names):
        column = declaration_of(name, columns)
        if column is None or not column.is_scalar:
            continue
        for statistic, known in _statistics_of_column(name, column).items():
            if statistic == "final_loss":
                continue
            if statistic in statistics:
                raise ValueError(
                    f"the column '{name}' would have the statistic '{statistic}', which "
                    f"is already the {statistics[statistic].meaning}; give the metric another "
                    "name"
                )
            statistics[statistic] = known
    if VIRTUAL_SECONDS in columns:
        total = Statistic(columns[VIRTUAL_SECONDS].total, False, False, VIRTUAL_SECONDS)
        statistics[f"total_{VIRTUAL_SECONDS}"] = total
    on_val = quality.replace("test_", "val_", 1)
    if on_val in columns:
        judged = declaration_of(quality, columns)
        assert judged is not None
        statistics[AT_BEST_VAL] = Statistic(
            f"`{quality}` in the first round in which `{on_val}` was best",
            judged.is_fraction,
            judged.higher_is_better,
            quality,
        )
    return statistics


def _statistics_of_column(name: str, column: ColumnDescription) -> dict[str, Statistic]:
    """Return the statistics of one column, by name."""
    metric = name.removeprefix("test_")
    best = "highest" if column.higher_is_better else "lowest"
    values = {
        f"final_{metric}": "in the last evaluated round",
        f"best_{metric}": f"{best} value of all rounds",
    }
    if metric != name:
        values[f"last5_{metric}"] = "mean of the last five evaluated rounds"
    known = partial(
        Statistic,
        is_fraction=column.is_fraction,
        higher_is_better=column.higher_is_better,
        column=name,
    )
    return {n: known(f"{column.meaning}, {value}") for n, value in values.items()}


def known_statistics(
    columns: Mapping[str, ColumnDescription], quality: str, names: Collection[str]
) -> dict[str, Statistic]:
    """Return what is known about some statistics, by name; unknown ones are left out.

    Args:
        columns: the declared columns, by name.
        quality: the column by which a model is judged.
        names: names of statistics, also those of columns of further classes.
    """
    # `final_x` may be a statistic of the column `test_x`, or of `x` itself.
    stems = [name.split("_", 1)[1] for name in names if "_" in name]
    measured = [c for s in stems for c in (f"test_{s}", s) if FURTHER_NAME.fullmatch(c)]
    every = statistics_of(columns, quality, measured) | _rounds_to(names, columns)
    return {name: every[name] for name in names if name in every}


def _rounds_to(
    names: Iterable[str], columns: Mapping[str, ColumnDescription]
) -> dict[str, Statistic]:
    """Return those of some names that count rounds or virtual seconds until a value.

    Example:
        >>> r2 = ColumnDescription("float64", "coefficient of determination", Summary.MEAN)
        >>> print(_rounds_to(["rounds_to_r2_0.7"], {"test_r2": r2})["rounds_to_r2_0.7"].meaning)
        rounds until `test_r2` is at 0.7 or better
    """
    counts = {}
    for name in names:
        parts = ROUNDS_TO.fullmatch(name)
        passed = name.partition("_to_")[0]
        if parts is None or passed not in ("rounds", *columns):
            continue
        metric, value = parts.groups()
        for column in (f"test_{metric}", metric) if metric else (ACCURACY,):
            declared = declaration_of(column, columns)
            if declared is not None and declared.is_scalar:
                until = f"`{column}` is at {value} or better"
                if not metric:
                    until = f"the test accuracy is at {value} %"
                meaning = f"{passed.replace('_', ' ')} until {until}"
                counts[name] = _lower(meaning, column=column)
                break
    return counts


def quality_statistics(quality: str) -> list[str]:
    """Return the statistics that a table shows by default, the first in its entries.

    Args:
        quality: the column by which runs are judged.
    """
    if quality == ACCURACY:
        return ["final", "last10", "best", "after_server"]
    metric = quality.removeprefix("test_")
    return [f"final_{metric}", f"last5_{metric}", f"best_{metric}"]


def also_by_default(
    columns: Mapping[str, ColumnDescription], quality: str
) -> list[str]:
    """Return the statistics that a table shows beside its entries by default.

    These are further statistics of what the runs are judged by, and the last values of the
    other metrics of runs that have some, as many as `MOST_ALSO`.

    Args:
        columns: the declared further columns, by name.
        quality: the column by which runs are judged.
    """
    of_quality = quality_statistics(quality)
    if not columns and quality == ACCURACY:
        return of_quality
    last = [
        name
        for name, known in statistics_of(columns, quality).items()
        if name == AT_BEST_VAL
        # A metric of each class would make the table wide.
        or (name.startswith("final_") and not re.search(r"_\d+$", known.column))
    ]
    return list(dict.fromkeys([*of_quality, *last[:MOST_ALSO]]))


def summarise_each(
    rows: "pd.DataFrame",
    lengths: Ints,
    columns: Mapping[str, ColumnDescription] | None = None,
    quality: str = ACCURACY,
    named: Iterable[str] = (),
) -> "pd.DataFrame":
    """Compute the statistics of many replicates.

    Args:
        rows: their rows, one replicate after the other, each in order of rounds, with
            the columns of `Record`.
        lengths: how many rows each replicate has; some may have none.
        columns: what is known about the further columns of the rows, by name.
        quality: the column by which a model is judged.
        named: statistics that are asked for by name: some of `BY_NAME`, and such as
            `rounds_to_r2_0.7`.

    Returns:
        One row per replicate, with the `STATISTICS` as columns, but those `BY_NAME` only if
        they are named, and after them those further statistics (`statistics_of`) that some
        replicate has. What cannot be computed is NaN. Runs that are not judged by their
        accuracy have no statistics of accuracies, unless some replicate has one.

    `STATISTICS` says what each is. More exactly, with a(t) the test accuracy at evaluated
    round t, and its rolling mean b(t) = mean of a over the last 20 evaluated rounds up to
    t (fewer at the start),

    last5_std                  divides by n - 1
    best5                      mean over o = 0, ..., 4 of the highest a(t) with t mod 5 = o:
                               the best accuracy of evaluations every fifth round
    rise_time                  1 + the first t with a(t) >= 0.9 a(end)
    rise_time20                1 + the first t with b(t) >= 0.9 b(end): FSL smooths its
                               accuracies, and does not say whether before taking the
                               rise time
    rounds_to_X                1 + the first t with a(t) >= X/100, NaN if there is none;
                               FSL calls rounds_to_50 T_0.5
    arbitrary_ratio            (client rounds - snapshots) / rounds. FAST defines its
                               Ratio as "Rounds with ACP / Total rounds" (section 5),
                               ACP being arbitrary client participation. Rounds in which
                               no client trains are therefore not arbitrary, but are
                               among all rounds
    """
    # Imported here, because pandas takes some tenths of a second to import.
    import pandas as pd

    columns = columns or {}
    named = {*named}
    further = [str(name) for name in rows if name not in COLUMNS]
    known = statistics_of(columns, quality, further) | _rounds_to(named, columns)
    replicates = _Replicates(rows, lengths)
    found = {
        name: formula()
        for name, formula in _of_every_run(replicates).items()
        if name in named or name not in BY_NAME
    }
    validated_by = quality.replace("test_", "val_", 1)
    for name, statistic in known.items():
        if name == AT_BEST_VAL and validated_by not in rows:
            continue
        if name not in STATISTICS and statistic.column in rows:
            best_by = validated_by if name == AT_BEST_VAL else statistic.column
            declared = declaration_of(statistic.column, columns)
            sign = 1 if declared is None or declared.higher_is_better else -1
            found[name] = _of_column(name, statistic.column, best_by, sign, replicates)
    frame = pd.DataFrame(found, index=range(len(lengths)))
    counts = [name for name, of in STATISTICS.items() if of.is_count]
    frame[counts] = frame[counts].fillna(0).astype(np.int64)
    # A value that is never reached is an answer.
    optional = [n for n in found if n not in STATISTICS and not ROUNDS_TO.fullmatch(n)]
    if quality != ACCURACY and replicates.accuracy.isna().all():
        optional += [name for name in OF_ACCURACY if name in found]
    return frame.drop(columns=[n for n in optional if frame[n].isna().all()])


class _Replicates:
    """The rows of replicates, of which statistics take groups.

    Args:
        rows: the rows of all replicates, one after the other.
        lengths: how many rows each replicate has.
    """

    def __init__(self, rows: "pd.DataFrame", lengths: Ints) -> None:
        self.rows = rows.reset_index(drop=True)
        self.of_row = np.repeat(np.arange(len(lengths)), lengths)
        self.number = self.rows.index.to_series()
        # How many rows of its replicate follow.
        self.left = self.each(self.number).cumcount(ascending=False)
        self.round = self.column("round")
        self.accuracy = self.column(ACCURACY)

    def column(self, name: str) -> "Floats":
        """Return a column of numbers, in which what is missing is NaN."""
        return self.rows[name].astype(np.float64)

    def each(self, values: "Floats") -> "Groups":
        """Return the values of each replicate."""
        return values.groupby(self.of_row)

    def sum(self, values: "Floats") -> "Floats":
        """Return the sum of each replicate that has values which are not missing.

        The sums of pandas depend in their last bits on the replicates before.
        """
        import pandas as pd

        known = values.dropna()
        some, place = np.unique(self.of_row[known.index], return_inverse=True)
        return pd.Series(np.bincount(place, known), some)

    def mean(self, values: "Floats") -> "Floats":
        """Return the mean of each replicate that has values which are not missing."""
        return self.sum(values) / self.sum(values.notna().astype(float))

    def last(self, values: "Floats", number: int = 1) -> "Floats":
        """Return the mean of each replicate's last values."""
        return self.mean(values.where(self.left < number))

    def in_rows(self, values: "Floats") -> "Floats":
        """Return for each row the value of its replicate."""
        return values.reindex(self.of_row).set_axis(self.number.index)

    def first(self, is_so: "pd.Series[bool]") -> "Floats":
        """Return the number of each replicate's first row that is so; NaN if none is."""
        return self.each(self.number.where(is_so)).min()

    def at_first(self, values: "Floats", is_so: "pd.Series[bool]") -> "Floats":
        """Return the value in each replicate's first row that is so; NaN if none is."""
        first = self.first(is_so)
        return values.reindex(first).set_axis(first.index)

    def rounds_until(self, is_so: "pd.Series[bool]") -> "Floats":
        """Return how many rounds each replicate ran, exact to `eval_every`, until one is so."""
        return self.at_first(self.round, is_so) + 1

    def rise_time(self, accuracy: "Floats") -> "Floats":
        """Return the rounds until an accuracy is at 90 % of its last value."""
        final = self.in_rows(self.last(accuracy))
        return self.rounds_until(accuracy >= 0.9 * final)


def _of_every_run(of: _Replicates) -> dict[str, Callable[[], "Floats"]]:
    """Return the formulas of the `STATISTICS`, in their order."""
    accuracy = of.accuracy
    best = of.each(accuracy).max()
    rounds = of.each(of.round).max() + 1
    totals = {
        f"total_{name}": of.each(of.rows.get(name, 0 * of.number).fillna(0)).sum()
        for name in TOTALS
    }
    client_rounds = of.rows["trained"].map(np.count_nonzero)
    formulas = {
        "rounds": lambda: rounds,
        "final": lambda: of.last(accuracy),
        "last5": lambda: of.last(accuracy, 5),
        "last5_std": lambda: of.each(accuracy.where(of.left < 5)).std(),
        "last10": lambda: of.last(accuracy, 10),
        "rolling20": lambda: of.last(accuracy, SMOOTH),
        "best": lambda: best,
        # The offset of the first evaluation is not known.
        "best5": lambda: (
            accuracy.groupby([of.of_row, of.round % 5]).max().unstack().mean(axis=1)
        ),
        "best_round": lambda: of.at_first(of.round, accuracy == of.in_rows(best)),
        "after_server": lambda: of.mean(accuracy.where(of.rows["kind"] == "server")),
        "rise_time": lambda: of.rise_time(accuracy),
        "rise_time20": lambda: of.rise_time(
            of.each(accuracy).rolling(SMOOTH, min_periods=1).mean().droplevel(0)
        ),
        "final_loss": lambda: of.last(of.column("test_loss")),
        "arbitrary_ratio": lambda: (
            (of.sum(client_rounds) - totals["total_snapshots"]) / rounds
        ),
        "total_bytes": lambda: totals["total_bytes_down"] + totals["total_bytes_up"],
    }
    formulas |= {name: partial(totals.__getitem__, name) for name in totals}
    return {name: formulas[name] for name in STATISTICS}


def _of_column(
    name: str, column: str, best_by: str, sign: int, of: _Replicates
) -> "Floats":
    """Return a further statistic.

    Args:
        name: its name.
        column: the column of the rows that it is a value of.
        best_by: the column in whose best round `at_best_val` is taken, and `best_...`.
        sign: -1 if a lower value of the columns is better, otherwise 1.
        of: the rows.
    """
    values = of.column(column)
    if until := ROUNDS_TO.fullmatch(name):
        target = float(until[2]) if until[1] else float(until[2]) / 100
        is_reached = sign * values >= sign * target
        if name.startswith("rounds"):
            return of.rounds_until(is_reached)
        first = of.first(is_reached)
        if VIRTUAL_SECONDS not in of.rows:
            return np.nan * first
        before = of.number <= of.in_rows(first)
        return of.sum(of.column(VIRTUAL_SECONDS).where(before))
    if column == VIRTUAL_SECONDS:
        return of.sum(values)
    if name == AT_BEST_VAL or name.startswith("best_"):
        judged = sign * of.column(best_by)
        return of.at_first(values, judged == of.in_rows(of.each(judged).max()))
    return of.last(values, 5 if name.startswith("last5_") else 1)
