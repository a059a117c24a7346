"""Which clients participate when in a sweep: one raster for each participation policy."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.part import POLICIES, entries_by_policy
from raysafl.report.figures.federation import draw_raster
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    OKABE_ITO,
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
)


def rasters(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw which clients participate in the first seed of the first run of each policy.

    Every round is drawn, evaluated or not. Enforced rounds have a colour of their own
    where some rounds, but not all, were enforced. There are at most six policies, and no
    figure if nothing has run.
    """
    policies = entries_by_policy(study.numbers.runs, study.numbers.manifest)
    rows_of = {str(run_id): rows for run_id, rows in study.took_part.groupby("run_id")}
    drawn = [
        (entries, entry.run_id)
        for entries in policies
        for entry in entries
        if entry.run_id in rows_of
    ]
    if not drawn:
        return None
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
