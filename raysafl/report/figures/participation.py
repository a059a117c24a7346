"""Which clients participate when in a sweep: one raster for each participation policy."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from raysafl.report.analysis.layout import labels_text
from raysafl.report.figures.federation import draw_raster
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    OKABE_ITO,
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
)
from raysafl.storage.manifest import Entry, Manifest

# Largest number of policies that are drawn.
POLICIES = 6


def rasters(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw which clients participate in the first seed of the first run of each policy.

    Every round is drawn, evaluated or not. Enforced rounds have a colour of their own
    where some rounds, but not all, were enforced. There are at most six policies, and no
    figure if nothing has run.
    """
    policies = entries_by_policy(study.numbers.runs, study.numbers.manifest)
    drawn = [
        (own, next(e.run_id for e in own if e.run_id in study.there))
        for own in policies
        if any(e.run_id in study.there for e in own)
    ][:POLICIES]
    if not drawn:
        return None
    rows = study.with_cohorts(run_id for _, run_id in drawn)
    rows_of = {str(run_id): own for run_id, own in rows.groupby("run_id")}
    figure, panels = style.panels(len(drawn), 5.0, 2.3, across=2)
    # The number of clients of a run is 0 where its configuration is not known.
    known = study.numbers.runs.reindex(columns=["run_id", "config.data.clients"])
    clients = pd.to_numeric(
        known.groupby("run_id")["config.data.clients"].first()
    ).fillna(0)
    marked = False
    for axes, (entries, run_id) in zip(panels, drawn, strict=False):
        rows = rows_of[run_id]
        rows = rows[rows["replicate"] == rows["replicate"].min()]
        took_part = took_part_in(rows, int(clients.get(run_id, 0)))
        enforced = np.concatenate(rows["enforced"].tolist())
        # Under uniform participation every round is, which a colour would not tell.
        enforced &= not enforced.all()
        marked |= bool(enforced.any())
        shared = study.numbers.layout.shared([entry.labels for entry in entries])
        title = labels_text(shared, list(shared)) or study.numbers.manifest.name
        draw_raster(axes, took_part, title, enforced)
    notes = [
        "cohorts of the first seed",
        "dashed lines are means",
        first_ones(min(POLICIES, len(policies)), len(policies), "policies"),
    ]
    entitle(figure, "Participation", notes, style)
    if marked:
        figure.supxlabel("orange: enforced rounds", color=OKABE_ITO[1])
    return figure


def took_part_in(rows: pd.DataFrame, clients: int) -> NDArray[np.bool_]:
    """Return which clients are in the cohort of each round, as booleans [rounds, clients].

    Args:
        rows: the rows of one replicate, in order of rounds.
        clients: the number of clients; the ids in cohorts may show that there are more.
    """
    cohorts = [ids for row in rows["cohorts"] for ids in row]
    seen = max((max(ids, default=-1) for ids in cohorts), default=-1) + 1
    took_part = np.zeros((len(cohorts), max(clients, seen, 1)), bool)
    for i, ids in enumerate(cohorts):
        took_part[i, ids] = True
    return took_part


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
