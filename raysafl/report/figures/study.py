"""What the figures of a sweep are drawn from."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pyarrow as pa

from raysafl.report.analysis.numbers import Numbers
from raysafl.storage.rows import of_runs, sorted_rows


@dataclass(frozen=True)
class Study:
    """A sweep as its figures see it: each is drawn by a function of a study and a style.

    Attributes:
        numbers: all numbers of its report.
        every_round: the rows of all runs but the damaged ones, as in `rounds/`.
        every_client: rows as in `clients/`.
    """

    numbers: Numbers
    every_round: pa.Table
    every_client: pa.Table

    @cached_property
    def there(self) -> set[str]:
        """The ids of the runs that have rows."""
        return set(self.every_round["run_id"].unique().to_pylist())

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """The rows of the entries that are shown one by one.

        They are without the cohorts, which take most of the memory.
        """
        shown = [entry.run_id for entry in self.numbers.shown.entries]
        rows = of_runs(self.every_round.drop_columns(["cohorts"]), shown)
        frame: pd.DataFrame = sorted_rows(rows).to_pandas()
        return frame

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The rows of `clients/`, in order."""
        frame: pd.DataFrame = sorted_rows(self.every_client, "clients").to_pandas()
        return frame

    def with_cohorts(self, run_ids: Iterable[str]) -> pd.DataFrame:
        """Return the rows of some runs with their cohorts."""
        rows = of_runs(self.every_round, run_ids)
        frame: pd.DataFrame = sorted_rows(rows).to_pandas()
        return frame
