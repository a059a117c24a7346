"""Rank the readings of what the papers leave open, for docs/reproduction.md.

A reading is one combination of choices, such as "a server round is one epoch over D0,
and the classes are spread in shards". The files `readings*.py` of the papers' folders
define them.
"""

import numpy as np
import pandas as pd

from experiments.papercheck.judging import readings
from experiments.safari.readings_spread import ENTRIES as PRINTED_SPREAD
from experiments.safari.readings_spread import SPREADS
from experiments.tools.measured import compared, sweeps
from raysafl.report.analysis.entries import statistics
from raysafl.report.pages.document import pipe_table
from raysafl.report.wording import NOTHING, number, signed, spread

NOT_MEASURED = "Not measured yet."
# method, s and p of the entry of table 8 that is furthest away
ODD_ENTRY = ("FedAvg", 4, 2)

SPREAD_SWEEP = "safari_readings_spread"
SPREAD_CLASSES = (2, 5)  # values of p for which the spreads differ
TABLE8_PLACES = [(0, 5), (2, 5), (4, 5)]  # s and m of the entries of table 8
TABLE10_PLACES = [(4, 1), (4, 2)]


def safari_readings():
    """Return each reading's mean absolute difference to SAFARI's table 8."""
    if "safari_readings" not in sweeps():
        return NOT_MEASURED
    found = compared("safari_readings")
    names = [name for name in statistics(found.manifest.table) if name != "last5"]
    rows = []
    for _, row in readings(found).iterrows():
        distances = [row.get(f"distance.{name}", np.nan) for name in names]
        texts = [NOTHING if np.isnan(x) else number(x, "%") for x in distances]
        rows.append([row["method"], row["reading"], *texts])
    return pipe_table(["method", "reading", *(f"`{name}`" for name in names)], rows, 2)


def safari_readings_n0():
    """Return SAFARI's gain over FedAvg for each n0, as printed and by reading."""
    if "safari_readings_n0" not in sweeps():
        return NOT_MEASURED
    entries = compared("safari_readings_n0").entries
    rows = []
    for (server_round, classes), group in entries.groupby(
        ["label.server round", "label.spread"], sort=False
    ):
        distance = number(group["diff.best"].abs().mean(), "%")
        gains = _by_size(group, "mean.best")
        rows.append([server_round, classes, distance, gains[2], gains[1]])
    rows.sort(key=lambda row: float(row[2]))

    first_round = entries["label.server round"].iloc[0]
    one_reading = entries[entries["label.server round"] == first_round]
    gains = _by_size(one_reading.drop_duplicates(["label.n0", "label.p"]), "paper.mean")
    rows.insert(0, ["printed", "", "", gains[2], gains[1]])
    sizes = ", ".join(str(n0) for n0 in sorted(set(entries["label.n0"])))
    head = ["server round", "spread", "distance", f"p = 2: n0 = {sizes}", "p = 1"]
    return pipe_table(head, rows, 2)


def _by_size(entries, column):
    """Return, for each p, the values of a column in the order of n0, as text."""
    return {
        p: ", ".join(number(value, "%") for value in group[column])
        for p, group in entries.sort_values("label.n0").groupby("label.p")
    }


def odd_entry():
    """Return one entry of table 8, seed by seed, for each spread of classes."""
    if "safari_readings" not in sweeps():
        return NOT_MEASURED
    sweep = sweeps()["safari_readings"]
    rows = []
    for entry in sweep.manifest.entries:
        labels = entry.labels
        if (labels["method"], labels["s"], labels["p"]) != ODD_ENTRY:
            continue
        is_entry = sweep.runs["run_id"] == entry.run_id
        percent = 100 * sweep.runs[is_entry][["final", "last10", "best"]]
        seeds = ", ".join(f"{x:.1f}" for x in sorted(percent["best"]))
        means = [
            spread(percent[name].mean(), percent[name].std(), "%") for name in percent
        ]
        rows.append([str(labels["spread"]), *means, seeds])
    return pipe_table(
        ["spread of classes", "final", "last10", "best", "best, seed by seed"], rows, 1
    )


def spreads():
    """Return how each kind of spread compares with table 8, over its deals."""
    if SPREAD_SWEEP not in sweeps():
        return NOT_MEASURED
    rows = []
    for p in SPREAD_CLASSES:
        printed = _printed_accuracies(p, TABLE8_PLACES)
        rows.append([f"printed, p = {p}", "", *_texts(printed), NOTHING, NOTHING])
        for kind in SPREADS:
            deals = _accuracies(kind, p, TABLE8_PLACES)
            entries = [
                spread(deals[at].mean(), deals[at].std(), "%")
                if at in deals
                else NOTHING
                for at in TABLE8_PLACES
            ]
            differences = deals - printed[deals.columns]
            level = number(differences.mean().abs().mean(), "%")
            each = differences.abs().mean(axis=1)
            ends = f"{number(each.min(), '%')} to {number(each.max(), '%')}"
            rows.append([f"{kind}, p = {p}", str(len(deals)), *entries, level, ends])
    head = ["spread", "deals", *(f"s = {s}" for s, _ in TABLE8_PLACES)]
    return pipe_table([*head, "distance of the mean", "of a deal"], rows, 1)


def places():
    """Return the place of FedAvg's printed numbers among the deals of shards."""
    if SPREAD_SWEEP not in sweeps():
        return NOT_MEASURED
    rows = []
    for p in SPREAD_CLASSES:
        for table, places in ((8, TABLE8_PLACES), (10, TABLE10_PLACES)):
            deals = _accuracies("shards", p, places)
            for (s, m), printed in _printed_accuracies(p, places).items():
                own = deals[s, m]
                # The printed number is one more deal, and our mean has an error too.
                z = (printed - own.mean()) / (own.std() * np.sqrt(1 + 1 / len(own)))
                below = f"{(own < printed).sum()} of {len(own)}"
                ours = spread(own.mean(), own.std(), "%")
                entry = f"p = {p}, s = {s}, m = {m} (table {table})"
                rows.append([entry, ours, number(printed, "%"), signed(z, "%"), below])
    head = ["entry of FedAvg", "ours, over deals", "printed", "z", "deals below"]
    return pipe_table(head, rows, 1)


def _accuracies(kind, p, places):
    """Return FedAvg's accuracy for each deal (rows) at each place (s, m), in per cent."""
    sweep = sweeps()[SPREAD_SWEEP]
    columns = {}
    for entry in sweep.manifest.entries:
        labels = entry.labels
        place = (labels["s"], labels["m"])
        if (labels["spread"], labels["p"]) == (kind, p) and place in places:
            runs = sweep.runs[sweep.runs["run_id"] == entry.run_id]
            columns[place] = 100 * runs.set_index("seed")["best5"]
    return pd.DataFrame({place: columns[place] for place in places if place in columns})


def _printed_accuracies(p, places):
    return pd.Series({(s, m): PRINTED_SPREAD["shards", s, m, p][0] for s, m in places})


def _texts(values):
    return [number(value, "%") for value in values]
