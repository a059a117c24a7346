"""Which reading of what the papers leave open is nearest: the tables of docs/reproduction.md."""

from collections import defaultdict

import numpy as np

from experiments.fast.readings import RATIOS, TABLE3
from experiments.tools.measured import judged, sweeps
from raysafl.report.analysis.cells import readings, statistics
from raysafl.report.pages.markdown import grid
from raysafl.report.wording import NOTHING, number, spread


def nearest_readings():
    if "safari_readings" not in sweeps():
        return "Not measured yet."
    cells, shown = judged("safari_readings")
    names = [n for n in statistics(shown.table) if n != "last5"]
    body = [
        [row["method"], row["reading"]]
        + [_or_dash(row.get(f"distance.{n}", np.nan)) for n in names]
        for _, row in readings(cells, shown).iterrows()
    ]
    return grid(["method", "reading", *(f"`{n}`" for n in names)], body, 2)


def readings_n0():
    if "safari_readings_n0" not in sweeps():
        return "Not measured yet."
    cells, _ = judged("safari_readings_n0")
    body = []
    for (kind, spread_), rows in cells.groupby(["label.server round", "label.spread"], sort=False):
        by_p = {p: own.sort_values("label.n0") for p, own in rows.groupby("label.p")}
        gains = [", ".join(number(y, "%") for y in by_p[p]["mean.best"]) for p in (2, 1)]
        body.append([kind, spread_, number(rows["diff.best"].abs().mean(), "%"), *gains])
    first = cells[cells["label.server round"] == cells["label.server round"].iloc[0]]
    by_p = first.drop_duplicates(["label.n0", "label.p"]).sort_values("label.n0").groupby("label.p")
    printed_ = {p: ", ".join(number(y, "%") for y in own["paper.mean"]) for p, own in by_p}
    body = [["printed", "", "", printed_[2], printed_[1]], *sorted(body, key=lambda r: float(r[2]))]
    sizes = ", ".join(str(n) for n in sorted(set(cells["label.n0"])))
    return grid(["server round", "spread", "distance", f"p = 2: n0 = {sizes}", "p = 1"], body, 2)


def odd_cell():
    if "safari_readings" not in sweeps():
        return "Not measured yet."
    manifest, runs, _ = sweeps()["safari_readings"]
    body = []
    for entry in manifest.entries:
        labels = entry.labels
        if (labels["method"], labels["s"], labels["p"]) == ("FedAvg", 4, 2):
            own = 100 * runs[runs["run_id"] == entry.run_id][["final", "last10", "best"]]
            seeds = ", ".join(f"{x:.1f}" for x in sorted(own["best"]))
            means = [spread(own[n].mean(), own[n].std(), "%") for n in own]
            body.append([str(labels["spread"]), *means, seeds])
    return grid(["spread of classes", "final", "last10", "best", "best, seed by seed"], body, 1)


CELLS = [("Uniform", 1), ("Beta", 0), ("Beta", 0.5), ("Beta", "Ada.(1)"), ("Beta", "Ada.(7)")]


def fast_readings():
    """FAST's: accuracies in percent of the uniform one's, and the share of arbitrary rounds.

    A smaller task does not reach the printed accuracies, but its cells can stand to one another
    as the printed ones do. Cells that a draw or an accuracy does not change are those of the
    same local training without it.
    """
    name = "fast_readings-medium"
    if name not in sweeps():
        return "Not measured yet."
    cells, shown = judged(name)
    found = defaultdict(dict)
    for _, cell in cells.iterrows():
        reading = tuple(cell[f"label.{axis}"] for axis in shown.table.readings)
        at = (cell["label.participation"], cell["label.q"])
        found[reading][at] = cell["mean.last5"], cell["mean.arbitrary_ratio"]
    printed = _relative({at: (TABLE3[*at, 0.1][0], RATIOS[*at, 0.1][0]) for at in CELLS})
    rows = [("printed", f"{TABLE3['Uniform', 1, 0.1][0]:.1f}", printed, NOTHING)]
    for (draw, *training, accuracy), own in found.items():
        whole = found["mass", *training, "local"] | found[draw, *training, "local"] | own
        relative = _relative(whole)
        far = float(np.mean(np.abs(np.subtract(relative, printed))))
        name = ", ".join(map(str, (draw, *training, accuracy)))
        rows.append((name, f"{whole['Uniform', 1][0]:.1f}", relative, f"{far:.1f}"))
    rows[1:] = sorted(rows[1:], key=lambda row: float(row[3]))
    head = ["reading", "uniform", *(f"q = {q}" for _, q in CELLS[1:])]
    head += ["arbitrary, Ada.(1)", "arbitrary, Ada.(7)", "distance"]
    body = [[name, top, *(f"{x:.1f}" for x in row), far] for name, top, row, far in rows]
    return grid(head, body, 1)


def _relative(cells):
    """Accuracies in percent of the uniform one, and both adaptive cells' arbitrary rounds."""
    shares = [100 * cells[at][0] / cells[CELLS[0]][0] for at in CELLS[1:]]
    return [*shares, *(cells[at][1] for at in CELLS[3:])]


def _or_dash(value):
    return NOTHING if np.isnan(value) else number(value, "%")
