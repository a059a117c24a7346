"""The sections of a report on the sweep itself: its table, entries, methods and cost."""

import math
from collections import Counter
from typing import Any

import pandas as pd

from raysafl.core.text import count, duration, first_of, format_bytes
from raysafl.report.analysis.entries import statistics, unit_of
from raysafl.report.analysis.evidence import CLEAR, LEVEL
from raysafl.report.analysis.layout import entries_by_labels, labels_text
from raysafl.report.analysis.numbers import MOST, Numbers, compares_methods
from raysafl.report.pages.document import Block, Cell, Grid, Strong
from raysafl.report.pages.markdown import bullets
from raysafl.report.wording import (
    CLOSE,
    NOTHING,
    as_markdown,
    caption,
    decimals_of,
    legend,
    number,
    ours,
    signed_spread,
    spread,
    spread_note,
)
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest, label_text

# Largest number of missing runs that are named.
NAMED = 6
# Largest number of lines on runs that ended badly.
LINES = 300
# Largest number of values of a setting that are named.
VALUES = 8


def table(numbers: Numbers) -> list[Block]:
    """Write the table, and what stands in its entries."""
    note = spread_note(numbers.entries, numbers.manifest.table)
    return [
        entries_text(numbers),
        share_text(numbers),
        pivot(numbers),
        marks_text(numbers),
        legend(numbers.shown_entries),
        f"{note} All entries are listed below." if note else "",
    ]


def entries_text(numbers: Numbers) -> str:
    """Say what stands in the entries of the table."""
    return caption(numbers.manifest, numbers.shown_entries)


def share_text(numbers: Numbers) -> str:
    """Say which entries are shown one by one, and where the others are, if there are any."""
    rest = "the numbers of all are in `runs.parquet`, which `raysafl results` filters and sorts"
    return f"Shown one by one are {numbers.share}; {rest}." if numbers.share else ""


def standings(numbers: Numbers) -> list[Block]:
    """Say which method or entry is best, and how other methods stand."""
    if not compares_methods(numbers.methods):
        return []
    unit = numbers.manifest.table.unit
    shown = numbers.manifest.table.statistic
    ranked_by = numbers.ranking.manifest.table.statistic
    ranks = numbers.ranking.ranks
    entries = numbers.entries.set_index("run_id")
    # No mean is one of the replicates alone that reached a value, or of easy settings alone.
    means = entries[f"mean.{shown}"].mask(entries["without"] > 0)
    runs = numbers.ranking.rows.groupby("method")["run_id"].unique()
    rows = [
        [
            method,
            number(means[runs[method]].mean(skipna=False), unit),
            f"{ranks[method].mean():.1f}",
            f"{len(numbers.marks.best.intersection(runs[method]))} of {len(ranks)}",
        ]
        for method in numbers.ranking.methods
    ]
    data = (
        f"Means and ranks are of `{shown}`, so the mean of the first method is optimistic."
        if ranked_by == shown
        else f"The ranks are by `{ranked_by}`, on the validation samples. The means, the table "
        f"and its marks are by `{shown}`, on the test set, which had no part in the ranks."
    )
    text = (
        f"{setting_text(numbers)}*Best mean* counts the settings in which a method has the best "
        f"mean of `{shown}`. {data}"
    )
    head = [numbers.layout.method or "", "mean", "mean rank", "best mean"]
    return [text, Grid("How methods stand", head, rows)]


def setting_text(numbers: Numbers) -> str:
    """Say over which labels settings range."""
    axes = numbers.layout.settings
    if not axes:
        return ""
    names = " and ".join(filter(None, [", ".join(axes[:-1]), axes[-1]]))
    return f"A setting is a choice of {as_markdown(names)}. "


def marks_text(numbers: Numbers) -> str:
    """Say what is bold in the table, and what a dagger marks; empty if nothing is marked."""
    if not numbers.marks.best:
        return ""
    winner = numbers.winner
    what = "means" if winner is None else "runs"
    best = "the best mean of each setting"
    if winner is not None:
        best = f"the best run, by `{winner.metric}`"
    text = f"Bold is {best}."
    if numbers.marks.close:
        few = (numbers.entries["replicates"] < 2).any()
        text += (
            f" {CLOSE} marks the {what} next to it that cannot be told apart from it: the "
            f"{LEVEL:.0%} interval of the difference, seed by seed, holds 0"
            f"{', or they have fewer than two seeds in common' if few else ''}."
        )
    return text


def pivot(numbers: Numbers) -> Grid:
    """Write the table with the axes that go down and across."""
    layout = numbers.layout
    marks = numbers.marks
    shown = numbers.shown
    table = shown.table
    entries = entries_by_labels(numbers.shown_entries, layout.axes)
    decimals = decimals_of(numbers.shown_entries[f"mean.{table.statistic}"])

    def cell(key: tuple[Any, ...]) -> Cell:
        if key not in entries:
            return ""
        entry = entries[key]
        text = ours(entry, table.statistic, table.unit, decimals)
        if entry["run_id"] in marks.close:
            text = f"{CLOSE} {text}"
        return Strong(text) if entry["run_id"] in marks.best else text

    columns = layout.combinations(shown, layout.across)
    labels = [dict(zip(layout.across, key, strict=True)) for key in columns]
    heads = [labels_text(own, layout.across) or table.statistic for own in labels]
    rows = [
        [*map(label_text, row), *(cell((*row, *column)) for column in columns)]
        for row in layout.combinations(shown, layout.down)
    ]
    return Grid(
        "The table",
        [*layout.down, *heads],
        rows,
        heads=len(layout.down),
        is_list=shown.is_drawn,
    )


def all_entries(numbers: Numbers) -> list[Block]:
    """Write one line per entry: its statistics, and how certain they are."""
    manifest = numbers.shown
    entries = numbers.entries
    axes = numbers.layout.axes
    unit = manifest.table.unit
    name, *others = statistics(manifest.table)
    others = [n for n in others if entries[f"mean.{n}"].notna().any()]
    parts = ["between", "within"] if (entries["partitions"] > 1).any() else []
    head = [*axes, "seeds", _named(name, manifest), f"± {LEVEL:.0%}", *parts]
    head += [_named(other, manifest) for other in others]
    decimals = {n: decimals_of(entries[f"mean.{n}"]) for n in (name, *others)}

    def mean_and_std(entry: Any, statistic: str) -> str:
        mean, std = (entry[f"{kind}.{statistic}"] for kind in ("mean", "std"))
        return spread(mean, std, unit_of(manifest, statistic), decimals[statistic])

    entry_of = entries_by_labels(numbers.shown_entries, axes)
    rows = list[list[Cell]]()
    for key in numbers.layout.combinations(manifest, axes):
        entry = entry_of[key]
        used = str(entry["replicates"] - entry["without"])
        row: list[Cell] = [*map(label_text, key), used, mean_and_std(entry, name)]
        row += [number(entry[n], unit, decimals[name]) for n in ("half.mean", *parts)]
        row += [mean_and_std(entry, other) for other in others]
        rows.append(row)
    meanings = {n: manifest.meaning(n) for n in statistics(manifest.table)}
    return [
        Grid("All entries", head, rows, len(axes), is_list=manifest.is_drawn),
        f"Mean ± standard deviation; ± {LEVEL:.0%} is half the width of the mean's interval "
        "(t).",
        "\n".join(
            f"- `{n}`: {as_markdown(text)}" for n, text in meanings.items() if text
        ),
    ]


def _named(statistic: str, manifest: Manifest) -> str:
    """Name a statistic, with its unit unless that is per cent."""
    unit = unit_of(manifest, statistic)
    return statistic if unit in ("", "%") else f"{statistic} ({unit})"


def methods(numbers: Numbers) -> list[Block]:
    """Write the paired comparisons of every method with the baseline."""
    manifest = numbers.manifest
    method = numbers.layout.method
    pairs = numbers.methods.seed_by_seed
    if pairs.empty or method is None:
        return []
    axes = [*(axis for axis in numbers.layout.axes if axis != method), method]
    order = numbers.layout.values
    places = pairs[[f"label.{axis}" for axis in axes]].apply(
        lambda column: column.map(order[column.name.removeprefix("label.")].index)
    )
    pairs = pairs.loc[places.sort_values([*places], kind="stable").index]
    decimals = decimals_of(pairs["diff"])
    unit = manifest.table.unit
    rows = []
    for _, pair in pairs.iloc[:MOST].iterrows():
        verdict = "higher" if pair["diff"] > 0 else "lower"
        p = [pair["p"], pair["holm"]]
        rows.append(
            [
                *(label_text(pair[f"label.{axis}"]) for axis in axes),
                f"{pair['seeds']:.0f}",
                signed_spread(pair["diff"], pair["half"], unit, decimals),
                *map(_p_text, p),
                verdict if pair["holm"] < CLEAR else "",
            ]
        )
    base = as_markdown(numbers.layout.method_name(pairs["baseline"].iloc[0]))
    where = "shown here"
    if len(rows) < len(pairs):
        where = f"of the sweep, of which {len(rows):,} are shown here"
    text = (
        f"Each method minus {base} in `{manifest.table.statistic}`. Runs with the same seed "
        f"have the same cohorts, so their differences are tested (those of the means over each "
        f"partition, where there are several partitions): paired t test, two-sided, with "
        f"the mean difference's {LEVEL:.0%} interval. *p (Holm)* is adjusted for all "
        f"{len(pairs):,} comparisons {where}; below "
        f"{CLEAR:g} the method is called higher or lower. With few seeds and many comparisons few "
        "are: an empty verdict is no evidence that methods are equal."
    )
    head = [*axes, "seeds", f"Δ ± {LEVEL:.0%}", "p", "p (Holm)", "verdict"]
    return [text, Grid("Paired comparisons", head, rows, len(axes))]


def _p_text(p: float) -> str:
    """Write a p-value with three decimals."""
    if math.isnan(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def losses(numbers: Numbers) -> list[Block]:
    """Say which seeds are not in the means, and why; empty if all have finished.

    There is one line per run and reason, of very many the first ones, and one line for all
    runs that have not begun.
    """
    manifest = numbers.manifest
    runs = numbers.runs
    names = {
        entry.run_id: labels_text(entry.labels, numbers.layout.axes) or manifest.name
        for entry in manifest.entries
    }
    ends = {str(run_id): Counter[str]() for run_id in runs["run_id"].unique()}
    bad = runs[runs["status"] != Status.FINISHED]
    reasons = bad["reason"].fillna("").astype(str)
    for run_id, status, reason in zip(
        bad["run_id"], bad["status"], reasons, strict=True
    ):
        ends[str(run_id)][f"{status}: {reason}".removesuffix(": ")] += 1
    for run_id, missing in zip(names, numbers.entries["missing"], strict=True):
        if missing and run_id in ends:
            ends[run_id]["missing"] = int(missing)
    lines = [
        f"{names[run_id]}: {count(number, 'seed')} {kind}"
        for run_id in names
        for kind, number in ends.get(run_id, {}).items()
    ]
    if len(lines) > LINES:
        lines[LINES:] = [f"and {len(lines) - LINES:,} more: runs.parquet has all"]
    absent = [name for run_id, name in names.items() if run_id not in ends]
    if absent:
        whole = f"{count(len(absent), 'run')} of {len(names)} missing"
        lines.append(f"{whole}: {first_of(absent, NAMED, '; ')}")
    if not lines:
        return []
    return ["Only finished seeds are in the means.", bullets(lines)]


def cost(numbers: Numbers) -> list[Block]:
    """Write the mean cost of a finished seed for each method."""
    runs = numbers.runs
    columns = {
        "total_steps": "local steps",
        "total_bytes_down": "to clients",
        "total_bytes_up": "from clients",
        "total_server_rounds": "server rounds",
        "total_snapshots": "enforced rounds",
    }
    if runs.empty or not set(columns) <= set(runs):
        return []
    if "total_virtual_seconds" in runs:
        columns["total_virtual_seconds"] = "virtual seconds"
    layout = numbers.layout
    finished = runs[runs["status"] == Status.FINISHED]
    entries = numbers.manifest.entries
    method_of = {e.run_id: label_text(layout.method_of(e)) for e in entries}
    methods = finished["run_id"].map(method_of)
    rows = []
    for method in layout.methods:
        own = finished[methods == label_text(method)]
        if own.empty:
            continue
        each = own.drop_duplicates("run_id")
        spending = [
            format_bytes(mean)
            if "bytes" in str(c)
            else f"{mean:,.{int(mean < 100)}f}".replace("nan", NOTHING)
            for c, mean in own[list(columns)].mean().items()
        ]
        name = label_text(method) if layout.method else "all runs"
        seconds = duration(float(each["seconds"].mean()))
        rows.append([name, str(len(each)), seconds, *spending])
    if not rows:
        return []
    head = [layout.method or "", "runs", "seconds of a run", *columns.values()]
    explanation = (
        "Means per finished seed; the seconds of a run cover all its seeds together. The columns "
        "to and from clients are the communication cost. Enforced rounds are those in which "
        "clients were sampled uniformly and trained, which under uniform participation is every "
        "client round."
    )
    return [Grid("Cost", head, rows), explanation]


def configuration(runs: pd.DataFrame) -> list[Block]:
    """Write the settings that differ between runs, and those that are the same in all."""
    prefix = "config."
    names = [str(c) for c in runs if str(c).startswith(prefix) and c != "config.kind"]
    same: list[str] = []
    differs: list[str] = []
    for name in sorted(names):
        values = sorted(set(runs[name].dropna().astype(str)), key=_natural)
        fact = f"{name.removeprefix(prefix)}: {first_of(values, VALUES)}"
        is_same = len(values) == 1 and runs[name].notna().all()
        if values:
            (same if is_same else differs).append(fact)
    parts = {"What differs between runs:": differs, "The same in all runs:": same}
    return [
        block for text, own in parts.items() if own for block in (text, bullets(own))
    ]


def _natural(value: str) -> tuple[float, str]:
    """Return a sort key that puts numbers in order of size, before words."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value
