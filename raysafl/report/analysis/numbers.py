"""All numbers of a report, computed once from the stored rows, and the rows themselves."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import pandas as pd
import pyarrow as pa

from raysafl.report.analysis.evidence import estimated
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.method_statistics import MethodStatistics
from raysafl.report.analysis.winner import Marks, Winner, judging, marks_of, winner_of
from raysafl.storage.manifest import Manifest
from raysafl.storage.rows import of_runs, sorted_rows
from raysafl.storage.statistics import ROUNDS_TO, quality_statistics

# Largest number of entries that tables and curves show. A page with more of them is slow
# to make and to open, and nobody reads it.
MOST = 1_000


@dataclass(frozen=True)
class Numbers:
    """What a sweep's report is made from.

    Attributes:
        runs: the rows of `runs.parquet`.
        manifest: the sweep; the best runs first, if they were drawn.
        shown: the sweep with the entries that are shown one by one, of too many the first.
            What summarises entries is computed from all of them.
        layout: the layout of its axes.
        entries: its entries, with the intervals of their means.
        marks: the runs that are bold in the table, and those with a dagger.
        methods: how the sweep's methods compare over all settings.
        ranking: the same by the statistic that ranks them: one on the validation samples
            if all runs have some, otherwise the table's.
        winner: the best run, if the sweep chooses one and a run has finished.
    """

    runs: pd.DataFrame
    manifest: Manifest
    shown: Manifest
    layout: Layout
    entries: pd.DataFrame
    marks: Marks
    methods: MethodStatistics
    ranking: MethodStatistics
    winner: Winner | None

    @classmethod
    def of(cls, runs: pd.DataFrame, manifest: Manifest, most: int = MOST) -> "Numbers":
        """Compute the numbers of a sweep, of which only a part may have run.

        Args:
            runs: the rows of `runs.parquet`.
            manifest: the sweep.
            most: the largest number of entries that are shown one by one.
        """
        winner = winner_of(runs, manifest) if manifest.goal else None
        ordered = list(manifest.entries)
        if manifest.is_drawn and winner:
            # A run without a rank is behind the others.
            place = {run_id: i for i, run_id in enumerate(winner.ranked)}
            ordered.sort(key=lambda entry: place.get(entry.run_id, len(place)))
            manifest = manifest.replace(entries=ordered)
        layout = Layout.of(manifest)
        entries = estimated(runs, manifest)
        methods = MethodStatistics(runs, manifest)
        marks = Marks()
        if winner is not None:
            marks = Marks(frozenset([winner.run_id]), frozenset(winner.ties))
        elif methods.are_compared:
            marks = marks_of(runs, entries, manifest, layout)
        return cls(
            runs=runs,
            manifest=manifest,
            shown=manifest.replace(entries=ordered[:most]),
            layout=layout,
            entries=entries,
            marks=marks,
            methods=methods,
            ranking=_ranking(runs, manifest),
            winner=winner,
        )

    @property
    def shown_entries(self) -> pd.DataFrame:
        """The entries that are shown one by one."""
        return self.entries.head(len(self.shown.entries))

    @property
    def share(self) -> str:
        """How many entries are shown one by one, in a few words; empty if all are."""
        shown = len(self.shown.entries)
        every = len(self.manifest.entries)
        return f"the first {shown:,} of {every:,} entries" if shown < every else ""

    @cached_property
    def best(self) -> Winner | None:
        """The run that the sweep chooses, or that the validation samples of all runs choose."""
        if (
            self.manifest.goal
            or judging(self.runs, self.manifest) == self.manifest.quality
        ):
            return self.winner
        return winner_of(self.runs, self.manifest)


def _ranking(runs: pd.DataFrame, manifest: Manifest) -> MethodStatistics:
    """Compare methods on the validation samples if all runs have some and the table may differ.

    It may where it shows the quality on the test set, and not where it counts rounds.
    """
    statistic = manifest.table.statistic
    known = manifest.statistic(statistic)
    is_quality = known and known.column == manifest.quality
    column = judging(runs, manifest)
    if is_quality and column != manifest.quality and not ROUNDS_TO.fullmatch(statistic):
        table = manifest.table.replace(statistic=quality_statistics(column)[0])
        manifest = manifest.replace(table=table)
    return MethodStatistics(runs, manifest)


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
