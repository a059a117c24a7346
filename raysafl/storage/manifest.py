"""What a sweep is: its labelled runs, and how they become a table."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, field_validator

from raysafl.core.component import Component
from raysafl.core.record import REPLICATES, SEED, ColumnDescription, cell_ids
from raysafl.core.text import nearest
from raysafl.storage.redaction import redacted
from raysafl.storage.statistics import (
    ACCURACY,
    ROUNDS_TO,
    Statistic,
    known_statistics,
    quality_statistics,
)

# A run's id becomes a part of the names of its files.
RUN_ID = r"^[\w-]+$"
# The scale at which runs are carried out as they are given.
PAPER = "paper"
Label = str | int | float | bool | None
# Axes with these names tell methods apart, if all their labels are words.
METHOD_AXES = ("algorithm", "method")


def same_label(a: Label, b: Label) -> bool:
    """Return whether two labels are equal, floats up to rounding."""
    if isinstance(b, float):
        a, b = b, a
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-9)
    return a == b


def label_text(value: Label) -> str:
    """Write a label as text, floats with six digits, so that 0.1 + 0.2 reads 0.3."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def run_name(labels: Mapping[str, Any], run_id: str) -> str:
    """Name a run by its labels, as `method=SAFARI, s=2`, or by its id if it has none."""
    return ", ".join(f"{k}={label_text(v)}" for k, v in labels.items()) or run_id


class Table(Component):
    """How a sweep becomes a table.

    An entry shows the mean of a statistic over the replicates of a run, and its standard
    deviation for one new partition and seed (`raysafl.report.analysis.entries`).

    Example:
        >>> table = Table(rows=["algorithm"], columns=["p"], statistic="last10")
        >>> table.scale, table.unit
        (100.0, '%')
    """

    rows: list[str] = Field(
        default_factory=list,
        description="the axes whose labels name the rows; where neither rows nor columns are "
        "given, the last axis makes columns and the others rows",
    )
    columns: list[str] = Field(
        default_factory=list, description="the axes whose labels name the columns"
    )
    panels: list[str] = Field(
        default_factory=list,
        description="the axes of which each value gets a heat map; by default the methods",
    )
    lines: str = Field(
        default="",
        description="the axis whose labels are the lines and marks of figures; by default the "
        "methods",
    )
    baseline: Label = Field(
        default="",
        description="the method that the others are compared with, by its label; by default the "
        "first one of the sweep",
    )
    statistic: str = Field(
        default="final",
        description="the column of runs.parquet that the entries show (docs/results.md); `final` "
        "is the last value of whatever the runs are judged by, such as `final_f1`",
    )
    also: list[str] = Field(
        default_factory=lambda: ["final", "last10", "best", "after_server"],
        description="further statistics shown beside it, as papers often do not say which of "
        "them they print",
    )
    scale: float = Field(
        default=100.0, description="the factor for the statistic; 100 gives per cent"
    )
    unit: str = Field(
        default="%", description="the unit of the statistic after scaling"
    )


def method_axis(
    labels: Mapping[str, Iterable[Label]], table: Table, is_drawn: bool = False
) -> str | None:
    """Return the axis that tells methods apart; None if there is none.

    It is that of the table's `lines`, otherwise the one that is named in `METHOD_AXES`,
    otherwise the last axis that goes down, otherwise the last axis that goes across.

    Args:
        labels: the labels on each axis of the sweep.
        table: the table.
        is_drawn: whether the runs were drawn; then the last axis tells no methods apart.
    """
    named = [
        axis
        for axis, own in labels.items()
        if axis in METHOD_AXES and all(isinstance(label, str) for label in own)
    ]
    down = table.rows or [axis for axis in labels if axis not in table.columns]
    last = [] if is_drawn else (down or table.columns)[-1:]
    return next(iter([*filter(None, [table.lines]), *named, *last]), None)


class Entry(Component):
    """One run of a sweep, under its labels on the sweep's axes."""

    run_id: str = Field(
        pattern=RUN_ID, description="the run's id, which is that of its first cell"
    )
    labels: dict[str, Label] = Field(
        description="the run's label on each axis of the sweep"
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="the run's configuration as JSON; empty if it could not be built",
    )

    @property
    def seeds(self) -> range:
        """The seed of each cell."""
        first = self.config.get(SEED, 0)
        return range(first, first + self.config.get(REPLICATES, 1))

    @property
    def cells(self) -> list[str]:
        """The ids of the run's cells; of one that could not be built its own id."""
        return cell_ids(self.config) if self.config else [self.run_id]

    def key(self, axes: Iterable[str]) -> tuple[Label, ...]:
        """Return the labels on some axes; None where there is none."""
        return tuple(self.labels.get(axis) for axis in axes)


class Manifest(Component):
    """A sweep's name, axes, runs and table. It is stored as `manifest.json`."""

    name: str = Field(description="the name of the sweep")
    title: str = Field(default="", description="the heading of the report")
    scale: str = Field(
        default=PAPER, description="the scale of the runs; paper is the original"
    )
    axes: list[str] = Field(description="the names of the axes")
    entries: list[Entry] = Field(description="the runs")
    table: Table = Field(description="how the runs become a table")
    notes: str = Field(
        default="",
        description="Markdown for the report, such as why its settings were chosen",
    )
    columns: dict[str, ColumnDescription] = Field(
        default_factory=dict,
        description="what is known about the columns of the runs' rows that not every run "
        "has, by name",
    )
    quality: str = Field(
        default=ACCURACY,
        description="the column by which the runs are judged; test_loss if they differ in it",
    )
    searched_by: str = Field(
        default="",
        description="the column that a search algorithm or a scheduler goes by; empty if "
        "there is none",
    )
    is_drawn: bool = Field(
        default=False,
        description="whether the runs were drawn, or asked for one by one, and so are no grid",
    )
    goal: tuple[str, str] | None = Field(
        default=None,
        description="the column by which the best run of a search is chosen, and whether its "
        "max or its min is best; empty if runs are compared and none is chosen",
    )
    source: str = Field(
        default="",
        description="the name of the experiment file, if the sweep came from one",
    )
    command: str = Field(
        default="",
        description="the command that runs the sweep again, without secrets",
    )

    @field_validator("command")
    @classmethod
    def _without_secrets(cls, command: str) -> str:
        return redacted(command)

    def select(self, only: Mapping[str, str]) -> list[str]:
        """Return the ids of the runs that have all these labels.

        Args:
            only: axis to label, or to several with commas between them, compared as
                text; a run without a label has None there.

        Raises:
            ValueError: there is no such axis, or nothing on it has that value.
        """
        chosen = self.entries
        for axis, value in only.items():
            if axis not in self.axes:
                raise ValueError(
                    f"the sweep has no axis '{axis}': {nearest(axis, self.axes)}"
                )
            labels = [entry.labels.get(axis) for entry in self.entries]
            wanted = labels_in(value, labels) or [value]
            for one in wanted:
                if not any(one in _spellings(label) for label in labels):
                    hint = nearest(one, map(str, labels))
                    raise ValueError(f"no run has {axis}={one}: {hint}")
            chosen = [e for e in chosen if _spellings(e.labels.get(axis)) & {*wanted}]
        if only and not chosen:
            raise ValueError(
                f"no run has all the labels {', '.join(f'{k}={v}' for k, v in only.items())}"
            )
        return [entry.run_id for entry in chosen]

    def extended(self, entries: Iterable[Entry]) -> "Manifest":
        """Return the manifest with those of the entries appended that it does not have."""
        present = {entry.run_id for entry in self.entries}
        more = [entry for entry in entries if entry.run_id not in present]
        return self.replace(entries=[*self.entries, *more]) if more else self

    def measuring(
        self, columns: Mapping[str, ColumnDescription], quality: str
    ) -> "Manifest":
        """Return the manifest with further columns, and what runs are judged by.

        Args:
            columns: the columns that some runs have; those of the manifest stay.
            quality: the column by which the runs are judged.
        """
        both = {**self.columns, **columns}
        if both == self.columns and quality == self.quality:
            return self
        return self.replace(columns=both, quality=quality)

    def statistic(self, name: str) -> Statistic | None:
        """Return what is known about a statistic, or None if no run can have it."""
        return self.known([name]).get(name)

    def known(self, names: Iterable[Any]) -> dict[str, Statistic]:
        """Return what is known about those of some names that are statistics of runs."""
        every = [str(name) for name in names]
        return known_statistics(self.columns, self.quality, every)

    @property
    def sign(self) -> int:
        """Return -1 if a lower value of the table's statistic is better, otherwise 1."""
        known = self.statistic(self.table.statistic)
        return -1 if known is not None and not known.higher_is_better else 1

    @property
    def ranked_by(self) -> tuple[str, bool]:
        """The statistic by which the best run is first, and whether a lower value is better.

        It is the last value of the goal of a search, otherwise the statistic of the table, or,
        if that is a value of the quality on the test set and all runs have validation samples,
        the last value of the quality on these.
        """
        if self.goal is not None:
            column, mode = self.goal
            return quality_statistics(column)[0], mode == "min"
        statistic = self.table.statistic
        known = self.statistic(statistic)
        on_val = self.quality.replace("test_", "val_", 1)
        data = [entry.config.get("data") or {} for entry in self.entries]
        has_val = on_val in self.columns and all(own.get("validation") for own in data)
        is_quality = known is not None and known.column == self.quality
        if has_val and is_quality and not ROUNDS_TO.fullmatch(statistic):
            statistic = quality_statistics(on_val)[0]
        return statistic, self.sign < 0

    @property
    def named_statistics(self) -> list[str]:
        """The statistics that the table names."""
        return [self.table.statistic, *self.table.also]

    def meaning(self, name: str) -> str:
        """Return what a statistic is, as one phrase; empty if that is not known."""
        found = self.statistic(name)
        return found.meaning if found else ""

    def labels(self) -> dict[str, dict[str, Any]]:
        """Return the labels of each run, by run id."""
        return {entry.run_id: dict(entry.labels) for entry in self.entries}


def labels_in(text: str, known: Iterable[Label]) -> list[str]:
    """Split labels at commas, unless the comma is a part of a known label.

    Example:
        >>> labels_in("cyclic, Beta(1, 10)", ["Beta(1, 10)", "cyclic"])
        ['cyclic', 'Beta(1, 10)']
    """
    names = sorted(map(label_text, known), key=len, reverse=True)
    found = []
    rest = text.strip()
    while rest:
        fits = (n for n in names if rest == n or rest.startswith(f"{n},"))
        name = next(fits, rest.partition(",")[0])
        found.append(name.strip())
        rest = rest[len(name) + 1 :].strip()
    return found


def _spellings(label: Label) -> set[str]:
    """Return how a label may be written: as Python does (`2.0`), and as tables do (`2`)."""
    return {str(label), label_text(label)}
