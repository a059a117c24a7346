"""The statistics of runs: numbers that summarise the rows of each replicate.

Every run has the `STATISTICS`. A run with further columns has further statistics, which
`statistics_of` derives from the declarations of its columns. Replicates of equally many
rows are computed together, as the rows of a matrix.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Number of evaluations over which FSL smooths.
SMOOTH = 20
# Name -> how many of the last rows.
MEANS = {"last5": 5, "last10": 10, "rolling20": 20}
# Test accuracies in per cent.
TARGETS = (10, 20, 30, 40, 50, 60, 70, 80, 90, 95)
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


def _accuracy(meaning: str) -> Statistic:
    return Statistic(meaning, is_fraction=True, column=ACCURACY)


def _duration(meaning: str) -> Statistic:
    return Statistic(meaning, higher_is_better=False)


def _total(meaning: str) -> Statistic:
    return Statistic(meaning, higher_is_better=False, is_count=True)


# The statistics of the test accuracy, which runs without one do not have.
OF_ACCURACY = {
    "final": _accuracy("test accuracy of the last evaluated round"),
    "last5": _accuracy("mean test accuracy of the last five evaluated rounds (FAST)"),
    "last5_std": Statistic(
        "standard deviation of the last five test accuracies (FAST's spread)",
        is_fraction=True,
        higher_is_better=False,
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
    "rise_time": _duration("rounds until the test accuracy is at 90 % of the final"),
    "rise_time20": _duration(
        "the same on the accuracy's rolling mean over twenty evaluations (FSL)"
    ),
    **{
        f"rounds_to_{target}": _duration(
            f"rounds until the test accuracy is at {target} %"
        )
        for target in TARGETS
    },
    "rounds_to_50_rolling20": _duration(
        "rounds until the accuracy's rolling mean over twenty evaluations is at 50 % "
        "(FSL's T_0.5, smoothed)"
    ),
}
# The statistics that every run has, in the order of the columns of runs.parquet.
STATISTICS = {
    "rounds": Statistic("rounds run", is_count=True),
    **OF_ACCURACY,
    "final_loss": Statistic(
        "test loss of the last evaluated round",
        higher_is_better=False,
        column="test_loss",
    ),
    "arbitrary_ratio": Statistic(
        "share of rounds in which clients trained and which were no snapshots (FAST's "
        "Ratio)",
        is_fraction=True,
    ),
    **{f"total_{name}": _total(COLUMNS[name].total) for name in TOTALS},
    "total_bytes": _total("bytes to and from clients"),
}
ACCURACIES = [name for name, known in OF_ACCURACY.items() if known.column == ACCURACY]
# With what the names of statistics begin that not every replicate reaches.
UNTIL = ("rounds_to_", f"{VIRTUAL_SECONDS}_to_")
# How many rounds, or virtual seconds, it takes until a metric is at a value, such as
# `rounds_to_r2_0.7`.
ROUNDS_TO = re.compile(rf"(?:{'|'.join(UNTIL)})([a-z]\w*)_(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
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
    values = {
        f"final_{metric}": "in the last evaluated round",
        f"best_{metric}": f"{'highest' if column.higher_is_better else 'lowest'} value of "
        "all rounds",
    }
    if metric != name:
        values[f"last5_{metric}"] = "mean of the last five evaluated rounds"
    return {
        statistic: Statistic(
            f"{column.meaning}, {value}",
            column.is_fraction,
            column.higher_is_better,
            name,
        )
        for statistic, value in values.items()
    }


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
        rounds until the coefficient of determination is at 0.7 or better
    """
    counts = {}
    for name in names:
        parts = ROUNDS_TO.fullmatch(name)
        passed = name.partition("_to_")[0]
        if passed not in ("rounds", *columns):
            continue
        for column in (f"test_{parts[1]}", parts[1]) if parts else ():
            declared = declaration_of(column, columns)
            if parts and declared is not None and declared.is_scalar:
                until = f"until the {declared.meaning} is at {parts[2]} or better"
                meaning = f"{passed.replace('_', ' ')} {until}"
                counts[name] = Statistic(meaning, higher_is_better=False, column=column)
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
        named: statistics that are asked for by name, such as `rounds_to_r2_0.7`.

    Returns:
        One row per replicate, with the `STATISTICS` as columns, and after them those
        further statistics (`statistics_of`) that some replicate has. What cannot be
        computed is NaN. Runs that are not judged by their accuracy have no statistics of
        accuracies, unless some replicate has one.

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
    rounds_to_50_rolling20     the same with b(t) and X = 50: T_0.5, should FSL have
                               taken it from its smoothed accuracies
    arbitrary_ratio            (client rounds - snapshots) / rounds. FAST defines its
                               Ratio as "Rounds with ACP / Total rounds" (section 5),
                               ACP being arbitrary client participation. Rounds in which
                               no client trains are therefore not arbitrary, but are
                               among all rounds
    """
    # Imported here, because pandas takes some tenths of a second to import.
    import pandas as pd

    statistics = {
        name: np.zeros(len(lengths), np.int64)
        if known.is_count
        else np.full(len(lengths), np.nan)
        for name, known in STATISTICS.items()
    }
    values_of = _Columns(rows)
    further = _FurtherStatistic(rows, columns or {}, quality, named)
    statistics |= {name: np.full(len(lengths), np.nan) for name in further.statistics}
    for some, places in _of_equal_length(lengths):
        of_some = _summarise_equal(values_of, places) | further.summarise_equal(places)
        for name, values in of_some.items():
            statistics[name][some] = values

    # Of these rounds, each replicate has a number of its own.
    alone = (rows["kind"] == "server").to_numpy(bool)
    replicate = np.repeat(np.arange(len(lengths)), lengths)
    rounds_alone = np.bincount(replicate[alone], minlength=len(lengths))
    accuracy = values_of.accuracy[alone]
    for some, places in _of_equal_length(rounds_alone):
        statistics["after_server"][some] = _means(accuracy[places])
    # A value that is never reached is an answer.
    optional = [name for name in further.statistics if not ROUNDS_TO.fullmatch(name)]
    if quality != ACCURACY and np.isnan(values_of.accuracy).all():
        optional += OF_ACCURACY
    empty = [name for name in optional if np.isnan(statistics[name]).all()]
    return pd.DataFrame(statistics).drop(columns=empty)


class _Columns:
    """The columns of rows as arrays, of which `_summarise_equal` takes matrices."""

    def __init__(self, rows: "pd.DataFrame") -> None:
        self.round: Ints = rows["round"].to_numpy(np.int64)
        self.accuracy = _floats(rows["test_accuracy"])
        self.loss = _floats(rows["test_loss"])
        self.client_rounds = np.array(
            [np.count_nonzero(t) for t in rows["trained"]], int
        )
        self.totals = {
            name: np.nan_to_num(rows[name].to_numpy())
            if name in rows
            else np.zeros(len(rows), np.int64)
            for name in TOTALS
        }


class _FurtherStatistic:
    """The further statistics, of the columns that the rows have.

    Args:
        rows: the rows.
        columns: what is known about further columns, by name.
        quality: the column by which a model is judged.
        named: statistics that are asked for by name.
    """

    def __init__(
        self,
        rows: "pd.DataFrame",
        columns: Mapping[str, ColumnDescription],
        quality: str,
        named: Iterable[str],
    ) -> None:
        further = [str(name) for name in rows if name not in COLUMNS]
        every = statistics_of(columns, quality, further) | _rounds_to(named, columns)
        # Columns of further classes are declared by those of the first ones.
        self.higher_is_better = {
            statistic.column: column.higher_is_better
            for statistic in every.values()
            if (column := declaration_of(statistic.column, columns))
        }
        self.rounds: Ints = rows["round"].to_numpy(np.int64)
        self.statistics = {
            name: statistic
            for name, statistic in every.items()
            if name not in STATISTICS and statistic.column in rows
        }
        self.on_val = quality.replace("test_", "val_", 1)
        if self.on_val not in rows:
            self.statistics.pop(AT_BEST_VAL, None)
        needed = {statistic.column for statistic in self.statistics.values()}
        needed |= {VIRTUAL_SECONDS}.intersection(rows)
        if AT_BEST_VAL in self.statistics:
            needed.add(self.on_val)
        self.values = {name: _floats(rows[name]) for name in sorted(needed)}

    def summarise_equal(self, places: Ints) -> dict[str, Floats]:
        """Return the statistics of replicates that have equally many rows.

        Args:
            places: the places of the rows of these replicates, [replicates, rows].
        """
        return {name: self._statistic(name, places) for name in self.statistics}

    def _statistic(self, name: str, places: Ints) -> Floats:
        statistic = self.statistics[name]
        values = self.values[statistic.column][places]
        if until := ROUNDS_TO.fullmatch(name):
            sign = 1.0 if self.higher_is_better[statistic.column] else -1.0
            rounds = self.rounds[places]
            reached = _rounds_until(rounds, sign * values, sign * float(until[2]))
            if name.startswith("rounds"):
                return reached
            if VIRTUAL_SECONDS not in self.values:
                return np.full(len(places), np.nan)
            seconds = self.values[VIRTUAL_SECONDS][places]
            passed = np.where(rounds < reached[:, None], seconds, 0.0).sum(axis=1)
            return np.where(np.isnan(reached), np.nan, passed)
        if statistic.column == VIRTUAL_SECONDS:
            total: Floats = values.sum(axis=1)
            return total
        if name == AT_BEST_VAL:
            judged_by = self.values[self.on_val][places]
            return _at_best(values, judged_by, statistic.higher_is_better)
        if name.startswith("best_"):
            return _at_best(values, values, statistic.higher_is_better)
        if name.startswith("last5_"):
            return _means(values[:, -5:])
        last: Floats = values[:, -1]
        return last


def _at_best(values: Floats, judged_by: Floats, higher_is_better: bool) -> Floats:
    """Return from each line the value where another quantity is best, the first such.

    Args:
        values: the values, [replicates, rows].
        judged_by: the quantity that is to be best, likewise; missing values are not.
        higher_is_better: whether it is best where it is highest.

    Returns:
        [replicates]; NaN where all of `judged_by` is missing.
    """
    signed = judged_by if higher_is_better else -judged_by
    first = np.where(np.isnan(signed), -np.inf, signed).argmax(axis=1)
    at_first = values[np.arange(len(values)), first]
    return np.where(np.isnan(judged_by).all(axis=1), np.nan, at_first)


def _floats(values: "pd.Series[Any]") -> Floats:
    return values.to_numpy(np.float64, na_value=np.nan)


def _of_equal_length(lengths: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Yield the groups of equally many rows together; groups without rows are left out.

    Args:
        lengths: how many rows each group has. Groups follow one another.

    Yields:
        The numbers of some groups, and the places of their rows, [groups, rows].
    """
    firsts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths[lengths > 0]):
        some = np.flatnonzero(lengths == length)
        yield some, firsts[some, None] + np.arange(length)


def _summarise_equal(columns: _Columns, places: Ints) -> dict[str, Any]:
    """Return the statistics of replicates that have equally many rows.

    Args:
        columns: the columns of all rows.
        places: the places of the rows of these replicates, [replicates, rows].

    Returns:
        All statistics but `after_server`, one value per replicate.
    """
    rounds = columns.round[places]
    accuracy = columns.accuracy[places]
    smooth = _rolling_means(accuracy)
    known = np.where(np.isnan(accuracy), -np.inf, accuracy)
    nothing = np.isnan(accuracy).all(axis=1)
    highest = known.argmax(axis=1)
    each = np.arange(len(places))
    totals = {
        f"total_{name}": values[places].sum(axis=1).astype(np.int64)
        for name, values in columns.totals.items()
    }
    client_rounds = columns.client_rounds[places].sum(axis=1)
    run = rounds.max(axis=1) + 1
    final = accuracy[:, -1:]
    smooth_final = smooth[:, -1:]
    return {
        "rounds": run,
        "final": final[:, 0],
        **{name: _means(accuracy[:, -k:]) for name, k in MEANS.items()},
        "last5_std": _deviations(accuracy[:, -5:]),
        "best": np.where(nothing, np.nan, accuracy[each, highest]),
        "best5": _best_of_every_fifth_round(rounds, known),
        "best_round": np.where(nothing, np.nan, rounds[each, highest]),
        "rise_time": _rounds_until(rounds, accuracy, 0.9 * final),
        "rise_time20": _rounds_until(rounds, smooth, 0.9 * smooth_final),
        **{f"rounds_to_{t}": _rounds_until(rounds, accuracy, t / 100) for t in TARGETS},
        "rounds_to_50_rolling20": _rounds_until(rounds, smooth, 0.5),
        "final_loss": columns.loss[places[:, -1]],
        "arbitrary_ratio": (client_rounds - totals["total_snapshots"]) / run,
        **totals,
        "total_bytes": totals["total_bytes_down"] + totals["total_bytes_up"],
    }


def _means(values: Floats) -> Floats:
    """Return the mean of each line, without missing values; NaN if all are missing."""
    there = ~np.isnan(values)
    sums = np.where(there, values, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        means: Floats = sums / there.sum(axis=1)
    return means


def _deviations(values: Floats) -> Floats:
    """Return the standard deviation (n - 1) of each line, without missing values."""
    there = ~np.isnan(values)
    squares = np.where(there, (_means(values)[:, None] - values) ** 2, 0.0)
    freedom = there.sum(axis=1) - 1
    variances = squares.sum(axis=1) / np.where(freedom > 0, freedom, np.nan)
    deviations: Floats = np.sqrt(variances)
    return deviations


def _rolling_means(values: Floats) -> Floats:
    """Return in each line the means of the last 20 values, at the start of fewer."""
    import pandas as pd

    # pandas takes the mean of each column.
    rolled = pd.DataFrame(values.T).rolling(SMOOTH, min_periods=1).mean()
    return np.ascontiguousarray(rolled.to_numpy().T)


def _rounds_until(rounds: Ints, accuracy: Floats, target: Floats | float) -> Floats:
    """Return how many rounds were run when the accuracy first reached a target.

    Args:
        rounds: the evaluated rounds of each replicate, [replicates, rows].
        accuracy: an accuracy for each of them.
        target: the accuracy to reach, one for all or [replicates, 1].

    Returns:
        The numbers of rounds, exact to the run's `eval_every`; NaN where the target was
        not reached.
    """
    reached = accuracy >= target
    first = rounds[np.arange(len(rounds)), reached.argmax(axis=1)] + 1.0
    return np.where(reached.any(axis=1), first, np.nan)


def _best_of_every_fifth_round(rounds: Ints, accuracy: Floats) -> Floats:
    """Return the highest accuracy that is seen if only every fifth round is evaluated.

    Which of five rounds is the first to be evaluated, the offset, is not known, so the
    result is the mean over the offsets. The highest of fewer evaluations is lower, the
    more so the more the accuracy goes up and down from round to round.

    Args:
        rounds: the evaluated rounds of each replicate, [replicates, rows].
        accuracy: the accuracy of each, minus infinity where it is missing.

    Returns:
        The means of five highest accuracies, or of fewer if a run was not evaluated at
        some offset: a run with `eval_every=5` has one offset, and the result is the
        highest of all its accuracies. NaN where there is no accuracy.
    """
    highest = [
        np.where(rounds % 5 == offset, accuracy, -np.inf).max(axis=1)
        for offset in range(5)
    ]
    of_offset = np.stack(highest, axis=1)
    return _means(np.where(np.isneginf(of_offset), np.nan, of_offset))
