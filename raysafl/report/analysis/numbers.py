"""All numbers of a report, computed once from the stored rows."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from raysafl.report.analysis.evidence import estimated
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.method_statistics import MethodStatistics
from raysafl.report.analysis.standing import Marks, marks_of
from raysafl.report.analysis.winner import Winner, judging, winner_of
from raysafl.storage.manifest import Manifest
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
        elif compares_methods(methods):
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


def compares_methods(methods: MethodStatistics) -> bool:
    """Return whether methods are compared with each other.

    They are not if one run is chosen.
    """
    return not methods.manifest.goal and len(methods.methods) > 1
