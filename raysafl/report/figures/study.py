"""What the figures of a sweep are drawn from."""

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.part import Part, raster_runs
from raysafl.storage.rows import of_runs, sorted_rows


@dataclass(frozen=True)
class Study:
    """A sweep as its figures see it: each is drawn by a function of a study and a style.

    Attributes:
        numbers: all numbers of its report.
        lines: the entries of which curves are drawn, which may be few of very many.
        rounds: their rows, as in `rounds/`, but without the cohorts.
        took_part: the rows of the runs of which the participation is drawn.
        clients: rows as in `clients/`.
    """

    numbers: Numbers
    lines: Part
    rounds: pd.DataFrame
    took_part: pd.DataFrame
    clients: pd.DataFrame

    @classmethod
    def of(cls, numbers: Numbers, rounds: pa.Table, clients: pa.Table) -> "Study":
        """Take the rows that are drawn, which may be few of very many.

        The cohorts take most of the memory, and curves do not show them.

        Args:
            rounds: the rows of all runs but the damaged ones, as in `rounds/`.
            clients: the rows of `clients/`.
        """
        lines = Part.of(
            numbers.entries, numbers.manifest, numbers.layout, numbers.winner
        )
        there = set(rounds["run_id"].unique().to_pylist())
        shown = {entry.run_id for entry in lines.manifest.entries} & there
        rasters = raster_runs(numbers.runs, numbers.manifest, there)
        return cls(
            numbers,
            lines,
            sorted_rows(of_runs(rounds.drop_columns(["cohorts"]), shown)).to_pandas(),
            sorted_rows(of_runs(rounds, rasters)).to_pandas(),
            sorted_rows(clients, "clients").to_pandas(),
        )
