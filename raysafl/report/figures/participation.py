"""Which clients came when in a sweep: one raster for each participation policy."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.part import POLICIES, entries_by_policy
from raysafl.report.figures.federation import WIDTH, draw_raster
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import OKABE_ITO, ON_SCREEN, Style, entitle


def rasters(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw which clients came in the first seed of the first run of each policy.

    Every round is drawn, evaluated or not. Enforced rounds have a colour of their own
    where some rounds, but not all, were enforced.

    Returns:
        A figure of at most six policies; none if nothing has run.
    """
    rounds = study.came
    policies = entries_by_policy(study.numbers.runs, study.numbers.manifest)
    came_of = {str(run_id): rows for run_id, rows in rounds.groupby("run_id")}
    drawn = [(own, e.run_id) for own in policies for e in own if e.run_id in came_of]
    if not drawn:
        return []
    wide = style.across(WIDTH / 1.5, min(2, len(drawn)))
    tall = -(-len(drawn) // wide)
    panel = 3.9 if wide > 1 else style.room * WIDTH / 1.5
    figure = style.figure(
        WIDTH * (1 if wide == 1 else 1.5), style.room * (2.3 * tall + 0.9)
    )
    grid = figure.subplots(tall, 2 * wide, width_ratios=[4, 1] * wide, squeeze=False)
    pairs = grid.reshape(-1, 2)
    # The number of clients of a run is 0 where its configuration is not known.
    known = study.numbers.runs.reindex(columns=["run_id", "config.data.clients"])
    clients = pd.to_numeric(
        known.groupby("run_id")["config.data.clients"].first()
    ).fillna(0)
    marked = False
    for (axes, side), (entries, run_id) in zip(pairs, drawn, strict=False):
        rows = came_of[run_id]
        rows = rows[rows["replicate"] == rows["replicate"].min()]
        came = came_in(rows, int(clients.get(run_id, 0)))
        enforced = np.concatenate(rows["enforced"].tolist())
        # Under uniform participation every round is, which a colour would not tell.
        enforced &= not enforced.all()
        marked |= bool(enforced.any())
        shared = study.numbers.layout.shared([entry.labels for entry in entries])
        title = labels_text(shared, list(shared)) or study.numbers.manifest.name
        draw_raster(axes, side, came, title, enforced, panel, style)
        side.tick_params(labelleft=False)
        side.set_xlabel("% of rounds")
    for axes in pairs[len(drawn) :].flat:
        axes.set_visible(False)
    notes = ["this is the first seed", "dashed lines are means"]
    if len(policies) > POLICIES:
        notes.append(f"shown are the first {POLICIES} of {len(policies)} policies")
    entitle(figure, "Who came when", notes, style)
    if marked:
        figure.supxlabel("orange: enforced rounds", color=OKABE_ITO[1])
    return [figure]


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
