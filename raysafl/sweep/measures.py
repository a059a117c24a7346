"""What the runs of a sweep are and measure, and what its definition may say of them.

A new sweep that says something else is refused with a ValueError, before anything runs and
before a file is written. A stored manifest is read without these checks, so that older folders
stay readable.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysafl.core.record import COLUMNS, FURTHER_NAME, ColumnDescription
from raysafl.core.text import in_brief, nearest
from raysafl.simulation.run import Run
from raysafl.storage.manifest import Label, Table, method_axis
from raysafl.storage.statistics import (
    ACCURACY,
    OF_ACCURACY,
    also_by_default,
    declaration_of,
    default_unit,
    known_statistics,
    quality_statistics,
    statistics_of,
)

LOSS = "test_loss"
# The labels of one run, one for each axis.
Key = tuple[Label, ...]


@dataclass(frozen=True)
class Measures:
    """The columns of some runs' rows that not every run has, and what they are judged by.

    Attributes:
        columns: what is known about each of these columns, by name.
        quality: the column by which all of the runs are judged; the test loss, which
            every run has, if they differ in it.
        has_validation: whether every run has validation samples.
        has_accuracy: whether some run measures the test accuracy.
    """

    columns: Mapping[str, ColumnDescription] = field(default_factory=dict)
    quality: str = ACCURACY
    has_validation: bool = False
    has_accuracy: bool = True

    @classmethod
    def of(cls, runs: Iterable[Run]) -> "Measures":
        """Return what some runs measure.

        A metric of each class has a column per class, of which those of the first classes
        are declared; the others are like these (`declaration_of`).

        Raises:
            ValueError: a column's name or type is not allowed, it means one thing in one
                run and another in the next, or a statistic's name would have two
                meanings.
        """
        columns: dict[str, ColumnDescription] = {}
        qualities: list[str] = []
        accurate: list[bool] = []
        seen: set[tuple[str, str, bool, bool]] = set()
        for run in runs:
            # The columns follow from these parts of a run.
            key = (
                run.objective.to_json(),
                str(run.eval_clients),
                run.devices is not None,
                run.data.has_validation,
            )
            if key in seen:
                continue
            seen.add(key)
            every = run.columns()
            accurate.append(ACCURACY in every)
            own = {
                name: column for name, column in every.items() if name not in COLUMNS
            }
            for name in own.keys() & columns.keys():
                _check_alike(name, own[name], columns[name])
            columns |= own
            qualities.append(quality_of(run))
        agreed = len(set(qualities)) == 1
        quality = qualities[0] if agreed else LOSS if qualities else ACCURACY
        # This refuses statistics of equal names.
        statistics_of(columns, quality)
        has_validation = bool(seen) and all(own for *_, own in seen)
        return cls(columns, quality, has_validation, any(accurate) or not accurate)

    @property
    def goal(self) -> tuple[str, str]:
        """What searchers and schedulers go by, and whether its `max` or its `min` is best.

        It is the quality on the validation samples if every run has some, and otherwise
        the quality on the test set.
        """
        on_val = self.quality.replace("test_", "val_", 1)
        name = on_val if self.has_validation else self.quality
        return name, self.mode(name)

    def mode(self, name: str) -> str:
        """Return whether the `max` or the `min` of a column is best."""
        column = declaration_of(name, self.columns)
        return "min" if column is not None and not column.higher_is_better else "max"

    @property
    def scalars(self) -> list[str]:
        """The columns of numbers that are measured on test and validation data."""
        further = [name for name, own in self.columns.items() if own.is_scalar]
        return list(dict.fromkeys([self.quality, LOSS, *further]))

    def check_metric(self, name: str, is_all: bool) -> None:
        """Refuse a metric that no run reports to Tune.

        Args:
            name: the metric.
            is_all: whether these are all columns. Of runs that are only known when sampled,
                any other may be one of theirs.
        """
        known = self.scalars
        if name not in known and (is_all or not FURTHER_NAME.fullmatch(name)):
            raise ValueError(
                f"no run reports the metric '{name}': {nearest(name, known)}"
            )

    def check_statistics(self, table: Table) -> None:
        """Refuse statistics of a table that no run has."""
        # What is not given follows from what the runs measure, and so does "final".
        also = table.also if "also" in table.model_fields_set else []
        asked = [("also", name) for name in also]
        if table.statistic != "final":
            asked.insert(0, ("statistic", table.statistic))
        missing = [] if self.has_accuracy else OF_ACCURACY
        for where, name in asked:
            if known_statistics(self.columns, self.quality, [name]).keys() <= {
                *missing
            }:
                every = statistics_of(self.columns, self.quality)
                near = nearest(name, [own for own in every if own not in missing])
                raise ValueError(
                    f"table: {where}: there is no statistic '{name}': {near}"
                )

    def filled(self, table: Table) -> Table:
        """Return a table with what it does not say, by what the runs measure.

        The entries show what the runs are judged by, and beside it `also_by_default`. A
        statistic that is a fraction is shown in per cent, bytes in MB, and another one as it is.
        """
        given = table.model_fields_set
        statistic = table.statistic
        if statistic == "final":
            statistic = quality_statistics(self.quality)[0]
        changes: dict[str, Any] = {}
        if statistic != table.statistic:
            changes["statistic"] = statistic
        if "also" not in given:
            changes["also"] = also_by_default(self.columns, self.quality)
        shown = known_statistics(self.columns, self.quality, [statistic]).get(statistic)
        if shown and not shown.is_fraction:
            scale, unit = default_unit(statistic, shown.is_fraction)
            if "scale" not in given and ("unit" not in given or table.unit != "%"):
                changes["scale"] = scale
            if "unit" not in given and ("scale" not in given or table.scale != 100):
                changes["unit"] = unit
        return table.replace(changes) if changes else table


def score_text(
    quality: str,
    value: float,
    columns: Mapping[str, ColumnDescription],
    digits: int = 2,
) -> str:
    """Write a value of the column by which a run is judged, such as `test mae 0.4182`.

    Args:
        quality: the column.
        value: its value.
        columns: what is known about further columns, by name.
        digits: the number of decimals of a fraction, which is shown in per cent.
    """
    column = declaration_of(quality, columns)
    in_per_cent = column is not None and column.is_fraction
    number = f"{value:.{digits}%}" if in_per_cent else f"{value:.4g}"
    return f"{quality.replace('_', ' ')} {number}"


def quality_of(run: Run) -> str:
    """Return the column by which a run is judged."""
    return f"test_{run.objective.metric}"


def _check_alike(name: str, one: ColumnDescription, other: ColumnDescription) -> None:
    """Refuse two columns of one name whose values cannot be compared."""
    differs = [
        kind
        for kind in ("type", "is_fraction", "higher_is_better")
        if getattr(one, kind) != getattr(other, kind)
    ]
    if differs:
        raise ValueError(
            f"two objectives of the sweep have a metric with the column '{name}', which "
            f"differ in {', '.join(differs)}; give one of them another name"
        )


def check_run(run: Any, where: str) -> Run:
    """Return the run.

    Args:
        run: what should be a run.
        where: where it was given, for the message.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(run, Run):
        raise ValueError(f"{where} is {in_brief(run)}; give a Run(...)")
    return run


def path_of(base: Run, field: str) -> str:
    """Return the dotted path of a field that is given by its path or by the end of it.

    Raises:
        ValueError: no component has it, or several have.
    """
    # Optional fields that are not given are not in `flat`.
    every = dict.fromkeys([*base.flat(), *type(base).model_fields])
    known = [path for path in every if path != "kind"]
    # What is inside a part that another axis replaces may not be in `base`.
    if "." in field or field in known:
        return field
    found = [path for path in known if path.rpartition(".")[2] == field]
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} components have a field '{field}'; give one of the dotted paths "
            f"{', '.join(found)}"
        )
    if not found:
        near = nearest(field, [path.rpartition(".")[2] for path in known])
        _, *parts = {type(part).__name__: None for part in base.components()}
        raise ValueError(
            f"neither the run nor its parts ({', '.join(parts)}) have a field '{field}': "
            f"{near}"
        )
    return found[0]


def without_numpy(value: Any) -> Any:
    """Return a number of numpy as one of Python's, and anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def as_key(label: Any) -> Key:
    """Return labels as a tuple of plain values, also those of numpy and a single one."""
    return tuple(map(without_numpy, label if isinstance(label, tuple) else (label,)))


def check_labels(axes: Any, keys: Sequence[Key]) -> None:
    """Refuse axes that are no names, and labels that do not match, or are given twice.

    Args:
        axes: the names of the axes.
        keys: the labels of each run on the axes; empty if the runs are only known when
            they have been sampled.
    """
    if isinstance(axes, str) or not all(isinstance(name, str) for name in axes):
        raise ValueError(
            f"axes is {in_brief(axes)}; give a tuple with one name per label, such as "
            "axes=('method', 's')"
        )
    _check_no_repeat(axes, "axes")
    for key in keys:
        if len(key) != len(axes):
            raise ValueError(
                f"label {key} has {len(key)} values, but the axes are {list(axes)}; give "
                "axes=(...) with one name per value"
            )
        for axis, label in zip(axes, key, strict=True):
            is_finite = not isinstance(label, float) or math.isfinite(label)
            if not isinstance(label, Label) or not is_finite:
                raise ValueError(
                    f"axis '{axis}' has the label {in_brief(label)}; a label is text, a "
                    "finite number, True, False or None; for components take "
                    "fl.grid(base, {...}), which labels them by their classes"
                )
    # Tables, `runs.parquet` and `--only` have the labels as text.
    texts = [tuple(map(str, key)) for key in keys]
    _check_no_repeat(texts, "the labels of the runs")


def check_table(table: Table, axes: Sequence[str], keys: Sequence[Key]) -> None:
    """Refuse a table with unknown axes or labels.

    Args:
        table: the table, with its rows or columns.
        axes: the names of the sweep's axes.
        keys: the labels of each run on them; empty if no run is known yet.
    """
    used = {name: getattr(table, name) for name in ("rows", "columns", "panels")}
    used["lines"] = [table.lines] if table.lines else []
    for name, names in used.items():
        for axis in names:
            if axis not in axes:
                raise ValueError(
                    f"table: {name}: there is no axis '{axis}': {nearest(axis, axes)}"
                )
    _check_no_repeat([*table.rows, *table.columns], "table: rows and columns")
    if table.baseline != "" and keys:
        labels = dict(zip(axes, zip(*keys, strict=True), strict=True))
        axis = method_axis(labels, table)
        if axis and table.baseline not in labels[axis]:
            near = nearest(str(table.baseline), map(str, labels[axis]))
            raise ValueError(
                f"table: baseline: no run has {axis}={table.baseline!r}: {near}"
            )


def _check_no_repeat(values: Sequence[Hashable], where: str) -> None:
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ValueError(f"{where}: {twice!r} is given twice; give it once")
