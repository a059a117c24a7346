"""Which clients came when in a sweep: one raster for each participation policy."""

from collections.abc import Set

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysafl.report.analysis.layout import Layout, labels_text
from raysafl.report.figures.federation import WIDTH, draw_raster
from raysafl.report.figures.style import LETTERS, OKABE_ITO, new_figure, to_png, wrapped
from raysafl.storage.manifest import Entry, Manifest

# Largest number of policies that are drawn.
MOST = 6


def rasters(
    rounds: pd.DataFrame, runs: pd.DataFrame, manifest: Manifest, layout: Layout
) -> bytes | None:
    """Draw which clients came in the first seed of the first run of each policy.

    Every round is drawn, evaluated or not. Enforced rounds have a colour of their own
    where some rounds, but not all, were enforced.

    Args:
        rounds: rows as in `rounds/`.
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        layout: the layout of its axes.

    Returns:
        A PNG file with at most six policies; None if nothing has run.
    """
    policies = _policies(runs, manifest)
    firsts = raster_runs(runs, manifest, set(rounds["run_id"]))
    drawn = [entries for entries in policies if entries[0].run_id in firsts]
    if not drawn:
        return None
    wide = min(2, len(drawn))
    tall = -(-len(drawn) // wide)
    figure = new_figure(WIDTH * (1 if wide == 1 else 1.5), 2.3 * tall + 0.9)
    grid = figure.subplots(tall, 2 * wide, width_ratios=[4, 1] * wide, squeeze=False)
    pairs = grid.reshape(-1, 2)
    marked = False
    for (axes, side), entries in zip(pairs, drawn, strict=False):
        rows = rounds[rounds["run_id"] == entries[0].run_id]
        rows = rows[rows["replicate"] == rows["replicate"].min()]
        came = came_in(rows, _num_clients(runs, entries[0]))
        enforced = np.concatenate(rows["enforced"].tolist())
        # Under uniform participation every round is, which a colour would not tell.
        enforced &= not enforced.all()
        marked |= bool(enforced.any())
        draw_raster(axes, side, came, _shared(entries, manifest, layout), enforced, 3.9)
        side.tick_params(labelleft=False)
        side.set_xlabel("% of rounds", fontsize=LETTERS)
    for axes in pairs[len(drawn) :].flat:
        axes.set_visible(False)
    title = "Who came when (first seed; dashed: mean)"
    if len(policies) > MOST:
        title += f", the first {MOST} of {len(policies)} policies"
    figure.suptitle(wrapped(title, figure.get_figwidth()), fontsize=LETTERS + 1)
    if marked:
        figure.supxlabel(
            "orange: enforced rounds", fontsize=LETTERS, color=OKABE_ITO[1]
        )
    return to_png(figure)


def raster_runs(runs: pd.DataFrame, manifest: Manifest, there: Set[str]) -> list[str]:
    """Return the ids of the runs that `rasters` draws.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        there: the ids of the runs that have rows.
    """
    firsts = [entries[0].run_id for entries in _policies(runs, manifest)]
    return [run_id for run_id in firsts if run_id in there][:MOST]


def _policies(runs: pd.DataFrame, manifest: Manifest) -> list[list[Entry]]:
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


def _shared(entries: list[Entry], manifest: Manifest, layout: Layout) -> str:
    """Write the labels that these entries share and others do not have."""
    several = [axis for axis in manifest.axes if axis in layout.varying]
    shared = [a for a in several if len({str(e.labels.get(a)) for e in entries}) == 1]
    return labels_text(entries[0].labels, shared) or manifest.name


def _num_clients(runs: pd.DataFrame, entry: Entry) -> int:
    """Return the number of clients of a run; 0 if its configuration is not known."""
    if "config.data.clients" not in runs:
        return 0
    clients = pd.to_numeric(
        runs.loc[runs["run_id"] == entry.run_id, "config.data.clients"]
    )
    return int(clients.fillna(0).iloc[0])


def came_in(rows: pd.DataFrame, clients: int) -> NDArray[np.bool_]:
    """Return which clients came in each round, as booleans [rounds, clients].

    Args:
        rows: the rows of one replicate, in order of rounds.
        clients: the number of clients; the ids that came may show that there are more.
    """
    cohorts = [ids for row in rows["cohorts"] for ids in row]
    seen = max((max(ids, default=-1) for ids in cohorts), default=-1) + 1
    came = np.zeros((len(cohorts), max(clients, seen, 1)), bool)
    for i, ids in enumerate(cohorts):
        came[i, ids] = True
    return came
