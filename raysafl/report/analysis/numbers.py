"""All numbers of a report, computed once from the stored rows."""

from dataclasses import dataclass

import pandas as pd

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.evidence import judged
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.method_statistics import MethodStatistics
from raysafl.report.analysis.part import MOST, Part
from raysafl.report.analysis.standing import Marks, marks_of
from raysafl.report.analysis.winner import Winner, judging, winner_of
from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import ROUNDS_TO, quality_statistics


@dataclass(frozen=True)
class Numbers:
    """What a sweep's report is made from.

    Attributes:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        layout: the layout of its axes.
        own: its entries.
        versus: the runs of the table: the sweep's, or their improvements over a baseline.
        shown: the manifest of the table.
        shown_layout: the layout of its axes.
        entries: the entries of the table with their verdicts.
        part: the entries of the table that are shown one by one.
        marks: the runs that are bold in the table, and those with a dagger.
        methods: how the sweep's methods compare over all settings.
        ranking: the same by the statistic that ranks them: one on the validation samples
            if all runs have some, otherwise the table's.
        winner: the best run, if the sweep chooses one and a run has finished.
    """

    runs: pd.DataFrame
    manifest: Manifest
    layout: Layout
    own: pd.DataFrame
    versus: pd.DataFrame
    shown: Manifest
    shown_layout: Layout
    entries: pd.DataFrame
    part: Part
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
        layout = Layout.of(manifest)
        versus, shown = improvements(runs, manifest)
        shown_layout = Layout.of(shown)
        entries = judged(versus, shown)
        own = entries if versus is runs else aggregate(runs, manifest)
        winner = winner_of(runs, manifest) if manifest.goal else None
        part = Part.of(entries, shown, shown_layout, winner, most)
        ranked = shown
        column = judging(versus, shown)
        known = shown.statistic(shown.table.statistic)
        is_count = ROUNDS_TO.fullmatch(shown.table.statistic)
        is_quality = known and known.column == shown.quality and not is_count
        if column != shown.quality and is_quality:
            statistic = quality_statistics(column)[0]
            ranked = shown.replace(table=shown.table.replace(statistic=statistic))
        methods = MethodStatistics(runs, manifest)
        marks = Marks()
        if winner is not None:
            marks = Marks(frozenset([winner.run_id]), frozenset(winner.ties))
        elif compares_methods(methods):
            marks = marks_of(runs, manifest, layout)
        return cls(
            runs,
            manifest,
            layout,
            own,
            versus,
            shown,
            shown_layout,
            entries,
            part,
            marks,
            methods,
            MethodStatistics(runs, ranked),
            winner,
        )


def compares_methods(methods: MethodStatistics) -> bool:
    """Return whether methods are compared with each other.

    They are not if one run is chosen, or if a paper's numbers or a baseline's stand beside.
    """
    sweep = methods.manifest
    chosen = sweep.goal or sweep.paper or sweep.table.minus
    return not chosen and len(methods.methods) > 1
