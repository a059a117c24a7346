"""Accuracy per client: how good the model is for a client, against how often it has trained."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from raysafl.report.analysis.layout import words_of
from raysafl.report.figures.lines import Quantity
from raysafl.report.figures.methods import lines_of, name_below
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    ON_SCREEN,
    Style,
    entitle,
    first_ones,
    fitted,
)
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest

# Largest number of clients of a run that are drawn one by one.
ONE_BY_ONE = 150
# Into how many points more clients are put together.
POINTS = 20
RATE = "rounds in which it trained (%)"


def clients_served(study: Study, style: Style = ON_SCREEN) -> Figure | None:
    """Draw each client's quality against the share of rounds in which it has trained.

    There is one panel for each combination of the labels beside the method. Each method has
    a colour and a mark, and each client of a run is one point: the mean over replicates,
    after the last round in which clients were evaluated. The clients of a larger federation
    are put together into 20 points, by how often they trained. Seeds that have not
    finished are left out, as in the table. There is none if no run has evaluated its
    clients.
    """
    layout = study.numbers.layout
    manifest = study.numbers.manifest
    what = _quantity_of(manifest)
    of_run = _points_of_clients(study.clients, study.numbers.runs, what)
    entries = [entry for entry in manifest.entries if entry.run_id in of_run]
    if not entries:
        return None
    others = [axis for axis in layout.axes if axis != layout.method]
    every = layout.combinations(manifest.replace(entries=entries), others)
    figure, panels = style.panels(
        len(every), 3.1, 2.5, 3, below=RATE, sharex=True, sharey=True
    )
    panel_of = dict(zip(every, panels, strict=False))
    for labels, axes in panel_of.items():
        axes.set_title(fitted(axes, words_of(dict(zip(others, labels, strict=True)))))
    line_of = lines_of(manifest, layout)
    shown = [entry for entry in entries if entry.key(others) in panel_of]
    for entry in shown:
        _, look = line_of[entry.run_id]
        panel_of[entry.key(others)].plot(
            of_run[entry.run_id]["rate"],
            of_run[entry.run_id]["value"],
            linestyle="none",
            marker=look.mark,
            color=look.colour,
            markerfacecolor=look.face,
            markersize=5,
            markeredgewidth=0.0 if look.is_filled else 1.0,
            alpha=0.75,
        )
    # No client trains in more than 100 % of the rounds; a point there is seen as a whole.
    left, right = panels[0].get_xlim()
    panels[0].set_xlim(left, min(right, 102))
    figure.supylabel(what.label)
    large = study.clients["client"].max() >= ONE_BY_ONE
    groups = (
        f"a point is one of {POINTS} groups of equal size, by how often they trained"
    )
    notes = [
        f"of more than {ONE_BY_ONE} clients {groups}"
        if large
        else "a point is a client",
        "points are means over seeds",
        "they are of the last evaluation of the clients",
        first_ones(len(panels), len(every), "panels"),
    ]
    entitle(figure, "Accuracy per client", notes, style)
    drawn = [line_of[entry.run_id] for entry in shown]
    name_below(figure, drawn, style, is_line=False)
    return figure


def _quantity_of(manifest: Manifest) -> Quantity:
    """Return the column of `clients/` that stands for what the runs are judged by."""
    what = Quantity.judging(manifest)
    # Runs that differ in their metric are judged by the loss, which all have.
    column = "loss" if what.column == "test_loss" else "quality"
    label = f"client's {what.label.removeprefix('test ')}"
    return replace(what, column=column, label=label)


def _points_of_clients(
    clients: pd.DataFrame, runs: pd.DataFrame, what: Quantity
) -> dict[str, pd.DataFrame]:
    """Return the points of each run: `rate` in per cent, and `value`."""
    if clients.empty or runs.empty:
        return {}
    good = runs.loc[runs["status"] == Status.FINISHED]
    kept = clients.merge(good[["run_id", "replicate"]], on=["run_id", "replicate"])
    last = kept.groupby(["run_id", "replicate"])["round"].transform("max")
    kept = kept[kept["round"] == last]
    rate = 100 * kept["participations"] / (kept["round"] + 1)
    kept = kept.assign(rate=rate, value=what.scale * kept[what.column])
    means = kept.groupby(["run_id", "client"], as_index=False)[["rate", "value"]].mean()
    return {
        str(run_id): _put_together(points[["rate", "value"]])
        for run_id, points in means.groupby("run_id")
    }


def _put_together(points: pd.DataFrame) -> pd.DataFrame:
    """Return the points, or means of equally many of them if there are very many."""
    if len(points) <= ONE_BY_ONE:
        return points
    ordered = points.sort_values("rate", kind="stable", ignore_index=True)
    group = np.arange(len(ordered)) * POINTS // len(ordered)
    return ordered.groupby(group).mean()
