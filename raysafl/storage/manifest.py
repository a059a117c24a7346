"""What a sweep is, written beside its results: labels, axes, the paper's numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from raysafl.core.component import Component
from raysafl.core.text import nearest

RUN_ID = r"^[\w-]+$"  # it becomes a file's name
PAPER = "paper"  # the scale of runs that may be laid beside printed numbers
Label = str | int | float | bool | None


class Printed(Component):
    """A number as the paper prints it: mean and, if given, standard deviation.

    `statistic` is what it is a value of; empty: the table's own statistic.
    """

    labels: dict[str, Label]
    mean: float
    std: float | None = None
    statistic: str = ""


class Claim(Component):
    """A sentence of a paper as a comparison of cells, which runs bear out or do not.

    With `order` (labels on some axes, two or more of them): at every place, that is, for all
    values of the other axes, the `statistic` of the cell with the first labels is higher than
    that of the second, by more than `margin`, and so on down. With `within` they are said to
    differ by no more than that instead. Without `order`: the statistic of every cell is at least
    `least` and at most `most`. Only cells that bear the labels of `where` count. All numbers are
    in the unit in which the table shows the statistic; the default is the table's own.
    """

    text: str
    order: list[dict[str, Label]] = Field(default_factory=list)
    where: dict[str, Label] = Field(default_factory=dict)
    statistic: str = ""
    margin: float = 0.0
    within: float | None = None
    least: float | None = None
    most: float | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Claim":
        bounded = self.least is not None or self.most is not None
        if len(self.order) == 1 or bool(self.order) == bounded:
            raise ValueError(
                f"claim '{self.text}' needs either order=[...] of two places or more, or "
                "least=... or most=..."
            )
        return self


class Table(Component):
    """How a sweep becomes a table: which axes go down, which across, what stands in a cell.

    `panels` are axes that have a heat map for each of their values (default: by method).

    `statistic` is a column of `runs.parquet` (see docs/results.md); cells are its mean and
    standard deviation over replicates, times `scale` (100 for per cent). `also` are further
    statistics, shown beside it, so that a reader sees which of them a printed number matches.

    `minus` are labels of a baseline: the table then shows each cell's improvement over the cell
    that differs in these labels alone, seed by seed (SAFARI's tables 2 to 4). `readings` are axes
    whose values are readings of the paper: the report tells which is nearest to the printed
    numbers. `more` are printed numbers of other statistics (FAST's ratio beside its accuracy).
    """

    rows: list[str]
    columns: list[str] = Field(default_factory=list)
    panels: list[str] = Field(default_factory=list)
    statistic: str = "final"
    also: list[str] = Field(default_factory=lambda: ["final", "last10", "best", "after_server"])
    scale: float = 100.0
    unit: str = "%"
    paper: list[Printed] = Field(default_factory=list)
    more: list[Printed] = Field(default_factory=list)
    minus: dict[str, Label] = Field(default_factory=dict)
    readings: list[str] = Field(default_factory=list)
    source: str = ""  # "SAFARI, table 8"

    def unprinted(self) -> "Table":
        """Without the paper's numbers; the statistics of `more` are still shown."""
        more = [printed.statistic for printed in self.more]
        return self.replace(paper=[], more=[], also=[*self.also, *more])


class Entry(Component):
    """One run of a sweep, under its labels on the sweep's axes."""

    run_id: str = Field(pattern=RUN_ID)
    labels: dict[str, Label]


class Manifest(Component):
    """A sweep's name, axes, runs and table. Stored as `manifest.json`.

    Printed numbers belong to runs as large as the paper's: at any scale but `paper` the table is
    `unprinted`, so that nothing made from a manifest lays smaller runs beside them.
    """

    name: str
    title: str = ""
    scale: str = PAPER
    axes: list[str]
    entries: list[Entry]
    table: Table
    claims: list[Claim] = Field(default_factory=list)  # what the paper says in words
    notes: str = ""  # Markdown: what the paper leaves open, and what was chosen
    source: str = ""  # the experiment file's name, if it came from one
    command: str = ""  # how to run it again

    @field_validator("table")
    @classmethod
    def _printed_beside_its_own_scale(cls, table: Table, info: ValidationInfo) -> Table:
        return table if info.data.get("scale") == PAPER else table.unprinted()

    def select(self, only: Mapping[str, str]) -> list[str]:
        """The ids of the runs that bear all these labels (compared as text).

        Raises:
            ValueError: there is no such axis, or nothing on it has that value.
        """
        chosen = self.entries
        for axis, value in only.items():
            if axis not in self.axes:
                raise ValueError(f"unknown label '{axis}': {nearest(axis, self.axes)}")
            values = {str(entry.labels[axis]) for entry in self.entries}
            if value not in values:
                raise ValueError(f"no run has {axis}={value}: {nearest(value, values)}")
            chosen = [entry for entry in chosen if str(entry.labels[axis]) == value]
        if only and not chosen:
            raise ValueError(
                f"no run bears all of {', '.join(f'{k}={v}' for k, v in only.items())}"
            )
        return [entry.run_id for entry in chosen]

    def extended(self, entries: Iterable[Entry]) -> "Manifest":
        """With further entries behind its own."""
        own = {entry.run_id: entry for entry in self.entries}
        more = [entry for entry in entries if entry.run_id not in own]
        return self.replace(entries=[*self.entries, *more]) if more else self

    def labels(self) -> dict[str, dict[str, Any]]:
        """Labels by run id."""
        return {entry.run_id: dict(entry.labels) for entry in self.entries}
