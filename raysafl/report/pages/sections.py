"""The last sections of a page: cost, configuration, and how the sweep was made."""

import math
from collections import defaultdict

import pandas as pd

from raysafl.core.text import format_bytes
from raysafl.report.analysis.layout import Layout, label_text
from raysafl.report.analysis.part import thinned
from raysafl.report.pages.html import Facts, Grid, Part, prose
from raysafl.report.pages.origin import duration, origin_facts
from raysafl.storage.manifest import Label, Manifest

# Largest number of methods whose cost is shown.
METHODS = 200
# Largest number of values of a setting that are named.
MOST = 8


def cost(runs: pd.DataFrame, manifest: Manifest, layout: Layout) -> list[Part]:
    """Write the mean cost of a replicate for each method, or for some of very many."""
    columns = {
        "total_steps": "local steps",
        "total_bytes_down": "to clients",
        "total_bytes_up": "from clients",
        "total_server_rounds": "server rounds",
        "total_snapshots": "enforced rounds",
    }
    method = layout.method
    if runs.empty or not set(columns) <= set(runs):
        return []
    of_entry = {e.run_id: e.labels.get(method) for e in manifest.entries if method}
    places = defaultdict[Label, list[int]](list)
    for i, run_id in enumerate(runs["run_id"]):
        places[of_entry.get(run_id)].append(i)
    spent = runs[["run_id", "seconds", *columns]]
    rows = []
    for (value,) in thinned([(value,) for value in layout.methods], METHODS):
        own = spent.iloc[places[value]]
        if own.empty:
            continue
        means = own[list(columns)].mean()
        each = own.drop_duplicates("run_id")
        entries = [
            format_bytes(means[c])
            if "bytes" in c
            else f"{means[c]:,.{int(means[c] < 100)}f}"
            for c in columns
        ]
        rows.append(
            [
                label_text(value),
                str(len(each)),
                duration(float(each["seconds"].mean())),
                *entries,
            ]
        )
    head = [method or "all", "runs", "seconds of a run", *columns.values()]
    explanation = (
        "Means per replicate; the seconds of a run cover all its replicates together. Enforced "
        "rounds are those in which clients were sampled uniformly and trained."
    )
    return [Grid("Cost", head, rows), prose(explanation)]


def configuration(runs: pd.DataFrame) -> list[Part]:
    """Write the settings that differ between runs, and those that are the same in all."""
    prefix = "config."
    names = [str(c) for c in runs if str(c).startswith(prefix) and c != "config.kind"]
    same: dict[str, str] = {}
    rows: list[list[str]] = []
    for name in sorted(names):
        values = sorted(set(runs[name].dropna().astype(str)), key=_natural)
        short = name.removeprefix(prefix)
        if len(values) == 1 and runs[name].notna().all():
            same[short] = values[0]
        elif values:
            more = f", and {len(values) - MOST} more" if len(values) > MOST else ""
            rows.append([short, ", ".join(values[:MOST]) + more])
    parts: list[Part] = []
    if rows:
        parts += [
            prose("What differs between runs:"),
            Grid("Differs", ["setting", "values"], rows, text=True),
        ]
    return [*parts, prose("The same in all runs:"), Facts(same)] if same else parts


def _natural(value: str) -> tuple[float, str]:
    """Return a sort key that puts numbers in order of size, before words."""
    try:
        return float(value), ""
    except ValueError:
        return math.inf, value


def how_it_was_made(
    runs: pd.DataFrame, manifest: Manifest, mlflow: str = ""
) -> list[Part]:
    """Write versions, machines and time, how to run the sweep again, and where MLflow is.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
        mlflow: from `mlflow_text`.
    """
    command = manifest.command
    again = [prose(f"To run it again:\n\n```sh\n{command}\n```")] if command else []
    browse = [prose(mlflow)] if mlflow else []
    return [Facts(origin_facts(runs, manifest)), *again, *browse]
