"""Which part of a sweep of very many entries a report shows entry by entry."""

import math
from collections.abc import Set
from dataclasses import dataclass, replace

import pandas as pd

from raysafl.report.analysis.layout import Layout
from raysafl.report.analysis.winner import Winner
from raysafl.storage.manifest import Entry, Manifest

# Largest number of entries that tables and curves show. A page with more of them is slow
# to make and to open, and nobody reads it.
MOST = 1_000
# Largest number of places of a table, empty ones among them.
LARGEST = 10_000
REST = "the numbers of all are in `runs.parquet`, which `raysafl results` filters and sorts."
# Largest number of policies that are drawn.
POLICIES = 6


@dataclass(frozen=True)
class Part:
    """The entries of a sweep that tables and curves show, one by one.

    These are all entries, or the first ones if there are too many. Those of a list are in
    the order of their ranks. What summarises entries, such as counts, claims and
    distances, is computed from all of them nevertheless.

    Attributes:
        manifest: the sweep with the entries that are shown.
        layout: the layout of its axes.
        entries: the entries that are shown.
        note: one sentence that says what is left out and where it is; empty if nothing
            is.
        share: how many of the entries are shown, in a few words; empty if all are.
    """

    manifest: Manifest
    layout: Layout
    entries: pd.DataFrame
    note: str = ""
    share: str = ""

    @classmethod
    def of(
        cls,
        entries: pd.DataFrame,
        manifest: Manifest,
        layout: Layout,
        winner: Winner | None = None,
        most: int = MOST,
    ) -> "Part":
        """Choose the entries that are shown.

        Args:
            entries: a row for each entry of the manifest, in its order.
            winner: the best run of a list, which knows the order of the others.
            most: the largest number of entries.
        """
        order = list(range(len(entries)))
        if manifest.is_drawn:
            ranked = winner.ranked if winner else []
            places = {run_id: i for i, run_id in enumerate(ranked)}
            ranks = entries["run_id"].map(places).to_numpy(float)
            # A run without a rank has NaN, which is last.
            order = ranks.argsort(kind="stable").tolist()
        shown = order[:most]
        part = manifest.replace(entries=[manifest.entries[i] for i in shown])
        if not manifest.is_drawn:
            layout = _narrow(part, Layout.of(part))
        share = note = ""
        if len(shown) < len(entries):
            share = f"the first {len(shown):,} of {len(entries):,} entries"
            note = f"Shown one by one are {share}; {REST}"
        return cls(part, layout, entries.iloc[shown], note, share)


def _narrow(manifest: Manifest, layout: Layout) -> Layout:
    """Let all axes go down if the table would else be large and almost empty.

    So it would be if labels are numbers that were drawn, which hardly occur twice.
    """
    sizes = (
        len(layout.combinations(manifest, a)) for a in (layout.down, layout.across)
    )
    if math.prod(sizes) <= LARGEST:
        return layout
    return replace(layout, down=layout.axes, across=[])


def raster_runs(runs: pd.DataFrame, manifest: Manifest, there: Set[str]) -> list[str]:
    """Return the first run of each policy that has rows, of six policies at most.

    Args:
        there: the ids of the runs that have rows.
    """
    policies = entries_by_policy(runs, manifest)
    each = [[e.run_id for e in own if e.run_id in there] for own in policies]
    return [own[0] for own in each if own][:POLICIES]


def entries_by_policy(runs: pd.DataFrame, manifest: Manifest) -> list[list[Entry]]:
    """Group the entries that have run by participation policy and number of clients."""
    columns = [
        c
        for c in runs
        if str(c).startswith(("config.participation", "config.data.clients"))
    ]
    if runs.empty or not columns:
        return []
    each = runs.drop_duplicates("run_id").set_index("run_id")[columns].astype(str)
    policy = {str(run_id): tuple(row) for run_id, *row in each.itertuples(name=None)}
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in manifest.entries:
        if entry.run_id in policy:
            groups.setdefault(policy[entry.run_id], []).append(entry)
    return list(groups.values())
