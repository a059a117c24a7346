"""Figures of clients: which labels they hold, when they participate, and how they are served."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from raysafl.report.analysis.layout import labels_text, words_of
from raysafl.report.analysis.numbers import Study
from raysafl.report.figures.curves import Quantity
from raysafl.report.figures.style import (
    GREY,
    OKABE_ITO,
    ON_SCREEN,
    Style,
    colours,
    entitle,
    first_ones,
    fitted,
    lines_of,
    name_below,
    new_figure,
    style_axes,
    to_png,
    wrapped,
)
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry, Manifest

WIDTH = 7.2  # inches
# Largest number of clients between which there are gaps.
FEW = 60
# Largest number of rows of a raster; of more clients, neighbours share a row.
ROWS = 2000
# Largest number of classes that have distinct colours, and names beside the colour bar.
MANY = 12
# Number of letters of a class's name.
LETTERS_OF_NAME = 10
# Further colours that can be told apart: grey, wine, indigo and sand.
FURTHER = ("#999999", "#882255", "#332288", "#DDCC77")


@ON_SCREEN.used()
def label_histogram(
    counts: NDArray[np.int64],
    server: NDArray[np.int64],
    names: Sequence[str],
    title: str,
) -> bytes:
    """Draw the samples of each class at each client as stacked bars.

    If the server holds samples, its bar stands apart on the right, on its own scale.
    The figure is that of FAST, figure 1 (docs/papers.md#fast).

    Args:
        counts: samples of each class at each client, [clients, classes].
        server: samples of each class at the server, [classes].
        names: the names of the classes; empty if they are not known.
        title: the title of the figure.

    Returns:
        A PNG file.
    """
    clients, classes = counts.shape
    few = classes <= MANY
    shades = [*OKABE_ITO, *FURTHER][:classes] if few else colours(classes)
    figure = new_figure(WIDTH, 3.4)
    if server.sum():
        axes, side = figure.subplots(1, 2, width_ratios=[12, 1])
        _stack(side, server[None], shades)
        side.set_xticks([0], ["server"])
    else:
        axes = figure.subplots()
    _stack(axes, counts, shades)
    axes.set_xlabel("client")
    axes.set_ylabel("training samples")
    axes.set_xlim(-0.7, clients - 0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(wrapped(title, WIDTH - 1), loc="left")
    norm = BoundaryNorm(np.arange(classes + 1) - 0.5, classes)
    scale = ScalarMappable(norm, ListedColormap(shades))
    bar = figure.colorbar(scale, ax=figure.axes, pad=0.02, fraction=0.04)
    ticks = np.linspace(0, classes - 1, min(classes, MANY)).round().astype(int)
    words = [
        str(names[tick])[:LETTERS_OF_NAME] if names else str(tick) for tick in ticks
    ]
    bar.set_ticks(ticks.tolist(), labels=words)
    bar.set_label("class")
    bar.minorticks_off()
    return to_png(figure)


def _stack(axes: Axes, counts: NDArray[np.int64], shades: Sequence[str]) -> None:
    """Draw stacked bars as one outline per class, which is fast for many clients."""
    style_axes(axes)
    axes.grid(visible=False, axis="x")
    # The gap between two bars is a step without a value.
    half = 0.4 if len(counts) <= FEW else 0.5
    places = np.arange(len(counts))[:, None] + [-half, half]
    edges = places.ravel()
    total = counts.cumsum(axis=1)
    for shade, upper, column in zip(shades, total.T, counts.T, strict=True):
        top = np.full(len(edges) - 1, np.nan)
        bottom = np.zeros(len(edges) - 1)
        top[::2] = upper
        bottom[::2] = upper - column
        axes.stairs(top, edges, baseline=bottom, fill=True, color=shade, linewidth=0)
    axes.set_ylim(0, max(1.03 * float(total.max()), 1.0))


@ON_SCREEN.used()
def participation_raster(took_part: NDArray[np.bool_], title: str) -> bytes:
    """Draw which clients participate when, and beside it how often, as in FAST, figure 2.

    Args:
        took_part: which clients participated in which rounds, [rounds, clients].
        title: the title of the figure.

    Returns:
        A PNG file.
    """
    figure = new_figure(WIDTH, 3.8)
    draw_raster(figure.subplots(), took_part, title, np.zeros(len(took_part), bool))
    figure.supxlabel("dashed: the mean of the clients", color=GREY)
    return to_png(figure)


def draw_raster(
    axes: Axes, took_part: NDArray[np.bool_], title: str, enforced: NDArray[np.bool_]
) -> None:
    """Draw which clients participate, and beside it each client's share of the rounds.

    Args:
        axes: where the raster is drawn.
        took_part: which clients participated in which rounds, [rounds, clients].
        title: the title above the raster.
        enforced: which rounds have a second colour, [rounds].
    """
    rounds, clients = took_part.shape
    colours = np.array([to_rgb(OKABE_ITO[int(second)]) for second in enforced])
    edges = np.arange(clients + 1) - 0.5
    first = np.arange(0, clients, -(-clients // ROWS))
    counts = np.add.reduceat(took_part.T, first, axis=0, dtype=np.float64)
    shares = (counts / np.diff(first, append=clients)[:, None])[..., None]
    axes.imshow(
        shares * colours + (1 - shares),
        aspect="auto",
        origin="lower",
        interpolation="antialiased",
        extent=(-0.5, rounds - 0.5, edges[0], edges[-1]),
    )
    if clients <= FEW:
        # Rows of neighbours are told apart, by gaps as those of the bars beside them.
        axes.barh(edges[1:-1], rounds, height=0.2, left=-0.5, color="white")
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    axes.set_title(fitted(axes, title))
    side = axes.inset_axes((1.04, 0, 0.24, 1), sharey=axes)
    share = 100 * took_part.mean(axis=0)
    if clients <= FEW:
        side.barh(np.arange(clients), share, color=OKABE_ITO[0])
    else:
        # One outline is drawn faster than many bars.
        side.stairs(
            share, edges, orientation="horizontal", fill=True, color=OKABE_ITO[0]
        )
    side.axvline(float(share.mean()), color=GREY, linewidth=0.8, linestyle="--")
    side.set_xlim(0, max(1.08 * float(share.max()), 1e-9))
    side.set_xlabel("% of rounds")
    side.tick_params(labelleft=False)
    for panel in (axes, side):
        style_axes(panel)
    axes.grid(visible=False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))


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
