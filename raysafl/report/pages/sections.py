"""The sections of a report on the sweep itself: its table, entries, cost and origin."""

import math
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from raysafl.core.text import count, duration, first_of, format_bytes
from raysafl.report.analysis.entries import statistics, unit_of, units_of
from raysafl.report.analysis.evidence import LEVEL
from raysafl.report.analysis.layout import entries_by_labels, labels_text
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Block, Cell, Grid, Strong, bullets
from raysafl.report.wording import (
    CLOSE,
    NOTHING,
    as_markdown,
    decimals_of,
    legend,
    number,
    ours,
    spread,
    spread_note,
)
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest, label_text
from raysafl.storage.mlflow_view import MlflowView, read_view
from raysafl.storage.statistics import STATISTICS, final_of
from raysafl.storage.store import Store

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
    manifest = numbers.manifest
    entries = numbers.shown_entries
    table = manifest.table
    meaning = as_markdown(manifest.meaning(table.statistic))
    what = f"`{table.statistic}`" + (f" ({meaning})" if meaning else "")
    unit = f", in {as_markdown(table.unit)}" if table.unit else ""
    used = sorted(set(entries["replicates"] - entries["without"]) - {0})
    seeds = " or ".join(map(str, used)) or "no"
    if len(used) > 2:
        seeds = f"{used[0]} to {used[-1]}"
    text = f"Each entry shows the mean ± standard deviation over {seeds} seeds of {what}{unit}."
    if used == [1]:
        text = f"Each entry shows {what}{unit}, of one seed."
    known = manifest.statistic(table.statistic)
    # What the statistics of every run mean is plain from their names.
    if known and not known.higher_is_better and table.statistic not in STATISTICS:
        text += " A lower value is better."
    if final_of(table.statistic):
        text += " Its round was chosen by the test set; *final* is the last round."
    return text


def share_text(numbers: Numbers) -> str:
    """Say which entries are shown one by one, and where the others are, if there are any."""
    rest = "the numbers of all are in `runs.parquet`, which `raysafl results` filters and sorts"
    return f"Shown one by one are {numbers.share}; {rest}." if numbers.share else ""


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
        runs = numbers.runs[numbers.runs["status"] == Status.FINISHED]
        units = units_of(runs)
        seeds = units.groupby(runs["run_id"]).agg(frozenset)
        few = len(frozenset.intersection(*seeds)) < 2
        text += (
            f" {CLOSE} marks the {what} next to it that cannot be told apart from it: the "
            f"{LEVEL:.0%} interval of the difference, {units.name} by {units.name}, holds 0"
            f"{f', or they have fewer than two {units.name}s in common' if few else ''}."
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
        text = spread(mean, std, unit_of(manifest, statistic), decimals[statistic])
        used = entry[f"used.{statistic}"]
        # The column of seeds counts those of the table's own statistic.
        is_part = statistic != name and 0 < used < entry["replicates"]
        return f"{text} [{used} of {entry['replicates']}]" if is_part else text

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
    note = f"Mean ± standard deviation; ± {LEVEL:.0%} is half the width of the mean's interval (t)."
    if any("[" in str(cell) for row in rows for cell in row[len(axes) + 2 :]):
        note += " [3 of 5] says that only three of five finished seeds have a value."
    return [
        Grid("All entries", head, rows, len(axes), is_list=manifest.is_drawn),
        note,
        "\n".join(
            f"- `{n}`: {as_markdown(text)}" for n, text in meanings.items() if text
        ),
    ]


def _named(statistic: str, manifest: Manifest) -> str:
    """Name a statistic, with its unit unless that is per cent."""
    unit = unit_of(manifest, statistic)
    return statistic if unit in ("", "%") else f"{statistic} ({unit})"


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
    methods = finished["run_id"].map(method_of).rename("method")
    means = finished[list(columns)].groupby(methods).mean()
    each = finished.drop_duplicates("run_id").groupby(methods)["seconds"]
    runs_of = each.size()
    seconds = each.mean()
    rows = []
    for method in layout.methods:
        text = label_text(method)
        if text not in means.index:
            continue
        spending = [
            format_bytes(mean)
            if "bytes" in c
            else f"{mean:,.{int(mean < 100)}f}".replace("nan", NOTHING)
            for c, mean in zip(columns, map(float, means.loc[text]), strict=True)
        ]
        name = text if layout.method else "all runs"
        spent = duration(float(seconds[text]))
        rows.append([name, str(runs_of[text]), spent, *spending])
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


# Where `raysafl ui` listens, unless the port is taken.
UI = "http://127.0.0.1:5000"
VERSIONS = ("raysafl", "python", "numpy", "torch", "ray")


def origin_facts(runs: pd.DataFrame, manifest: Manifest) -> dict[str, str]:
    """Describe how a sweep was made: experiment, commit, versions, machines and time.

    If the sweep was continued after an update or on another machine, all values are
    named with the number of runs that have each. What is not known is left out.
    """
    each = runs.drop_duplicates("run_id") if len(runs) else runs
    versions = {name: _values_text(each, name) for name in VERSIONS}
    facts = {
        "experiment": manifest.source,
        "commit": _values_text(each, "commit"),
        "versions": ", ".join(f"{name} {v}" for name, v in versions.items() if v),
        "host": _values_text(each, "host"),
        "device": _values_text(each, "device"),
        "total time": duration(float(each["seconds"].sum()))
        if "seconds" in each
        else "",
    }
    return {name: value for name, value in facts.items() if value}


def mlflow_text(store: Store) -> str:
    """Say where MLflow shows a sweep, and how to start it, as Markdown; empty if not known."""
    view = read_view(store)
    if view is None:
        return ""
    if view.is_served:
        page = view.uri.rstrip("/") + view.page
        return f"In MLflow: [all runs and their charts]({page})."
    root = store.path.parent
    return (
        f"In MLflow: start its server with `{ui_call(view, root, str(root))}`, and open "
        f"[all runs and their charts]({UI}{view.page}). If the server names another port, take "
        "that one."
    )


def ui_call(view: MlflowView, root: Path, shown: str) -> str:
    """Return the command that serves the database to which a sweep in `root` is logged.

    Args:
        view: where MLflow shows the sweep.
        root: the folder that holds the sweep.
        shown: how the command names it.
    """
    beside = f"sqlite:///{root.resolve() / 'mlflow.db'}"
    uri = f"MLFLOW_TRACKING_URI={shlex.quote(view.uri)} "
    return f"{'' if view.uri == beside else uri}raysafl ui {shlex.quote(shown)}"


def _values_text(each: pd.DataFrame, column: str) -> str:
    """Write the values of a column, with the number of runs if there are several."""
    if column not in each:
        return ""
    counts = each[column].dropna().astype(str).value_counts()
    if len(counts) == 1:
        return str(counts.index[0])
    return ", ".join(
        f"{value} ({count(n, 'run')})" for value, n in counts.items() if value
    )
