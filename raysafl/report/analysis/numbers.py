"""All numbers of a report, computed once from the stored rows."""

from dataclasses import dataclass

import pandas as pd

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.evidence import judged
from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.method_statistics import MethodStatistics
from raysafl.report.analysis.part import Part
from raysafl.report.analysis.standing import close_to_best
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
        close: the runs that are the best of their setting, or not told apart from it.
        methods: how the sweep's methods compare over all settings.
        chooser: the same by the statistic that chooses the best: one on the validation
            samples if all runs have some, otherwise the table's.
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
    close: frozenset[str]
    methods: MethodStatistics
    chooser: MethodStatistics
    winner: Winner | None

    @classmethod
    def of(cls, runs: pd.DataFrame, manifest: Manifest) -> "Numbers":
        """Compute the numbers of a sweep, of which only a part may have run."""
        layout = Layout.of(manifest)
        versus, shown = improvements(runs, manifest)
        shown_layout = Layout.of(shown)
        entries = judged(versus, shown)
        own = entries if versus is runs else aggregate(runs, manifest)
        winner = winner_of(runs, manifest) if manifest.goal else None
        part = Part.of(entries, shown, shown_layout, winner)
        chooser = shown
        column = judging(versus, shown)
        known = shown.statistic(shown.table.statistic)
        is_count = ROUNDS_TO.fullmatch(shown.table.statistic)
        is_quality = known and known.column == shown.quality and not is_count
        if column != shown.quality and is_quality:
            statistic = quality_statistics(column)[0]
            chooser = shown.replace(table=shown.table.replace(statistic=statistic))
        close = close_to_best(versus, shown, chooser, shown_layout)
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
            close,
            MethodStatistics(runs, manifest),
            MethodStatistics(runs, chooser),
            winner,
        )
