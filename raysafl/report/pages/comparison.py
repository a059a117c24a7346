"""Several sweeps side by side: one table and one page, matched by labels."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysafl.report.analysis.entries import aggregate
from raysafl.report.analysis.evidence import LEVEL, welch
from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.part import MOST, thinned
from raysafl.report.pages.document import Document, Facts, Grid, Picture
from raysafl.report.pages.html import html
from raysafl.report.pages.markdown import markdown
from raysafl.report.pages.origin import origin_facts
from raysafl.report.wording import signed_spread, spread
from raysafl.storage.files import atomic_write
from raysafl.storage.manifest import Label, Manifest, Table
from raysafl.storage.store import Store

Labels = tuple[tuple[str, Label], ...]
# The entries of a sweep by their labels.
Entries = Mapping[Labels, Any]


def write_comparison(stores: Sequence[Store], out: Path) -> list[Path]:
    """Write `comparison.md` and `comparison.html` of several sweeps into a folder.

    Entries with the same labels stand in one line. The statistic, its scale and its unit
    are those of the first sweep. Δ is the difference to the first sweep, with Welch's
    95 % interval.

    Args:
        stores: the folders of the sweeps, each with `runs.parquet`.
        out: the folder to write into.

    Returns:
        The two files.

    Raises:
        ValueError: a sweep's `runs.parquet` is missing or damaged, or lacks the
            statistic.
    """
    manifests = [store.manifest() for store in stores]
    frames = [store.runs() for store in stores]
    names = _distinct_names(stores)
    table = manifests[0].table
    sweeps = [
        _entries_in_statistic(runs, m, table)
        for runs, m in zip(frames, manifests, strict=True)
    ]
    combinations = list(
        dict.fromkeys(labels for entries in sweeps for labels in entries)
    )
    shown = thinned(combinations, MOST)
    fewer = (
        f" {len(shown):,} of {len(combinations):,} entries are shown, evenly spaced; the "
        "numbers of all are in each `runs.parquet`."
    )
    head = [
        "entry",
        names[0],
        *(text for name in names[1:] for text in (name, f"Δ {name}")),
    ]
    rows = [
        [_entry_name(labels, manifests[0].axes), *_line(labels, sweeps, table)]
        for labels in shown
    ]
    common = sum(
        all(labels in entries for entries in sweeps) for labels in combinations
    )
    unit = f", in {table.unit}" if table.unit else ""
    meaning = manifests[0].meaning(table.statistic) or "of runs.parquet"
    text = (
        f"`{table.statistic}` ({meaning}{unit}): mean ± "
        f"standard deviation over seeds [how many]. {common} of {len(combinations)} entries are in "
        f"every sweep. Δ is to {names[0]}, ± half the width of its {LEVEL:.0%} interval (Welch)."
    )
    text += fewer if len(shown) < len(combinations) else ""
    title = f"{', '.join(names[:-1])} and {names[-1]}"
    scales = {manifest.scale for manifest in manifests}
    warning = f"Scales differ: {', '.join(sorted(scales))}." if len(scales) > 1 else ""
    # The first page of each sweep's curves, as its report has them.
    alt = "Lines over rounds, one panel for each combination of labels, one line per method"
    pictures = [
        Picture(file.name, file.read_bytes(), f"{alt}: {name}", name, half=True)
        for file, name in zip(
            (s.file("curves.png") for s in stores), names, strict=True
        )
        if file.is_file()
    ]
    made = zip(names, frames, manifests, strict=True)
    document = Document(
        title=title,
        warning=warning,
        sections={
            "Entries": [text, Grid("Entries", head, rows)],
            "Curves": pictures,
            **{f"How {n} was made": [Facts(origin_facts(r, m))] for n, r, m in made},
        },
    )
    files = {"comparison.md": markdown(document), "comparison.html": html(document)}
    for name, content in files.items():
        atomic_write(out / name, content.encode())
    return [out / name for name in files]


def _distinct_names(stores: Sequence[Store]) -> list[str]:
    """Return the folders' names, with as much of the path as makes them distinct."""
    parts = [tuple(str(store.path.resolve()).split("/")) for store in stores]
    # Folders of equal names are told apart by the folders above them.
    depth = 1
    while len({part[-depth:] for part in parts}) < len(set(parts)):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def _entries_in_statistic(
    runs: pd.DataFrame, manifest: Manifest, table: Table
) -> Entries:
    """Return a sweep's entries in the statistic of another sweep's table, by their labels."""
    same = manifest.table.replace(statistic=table.statistic, also=[], scale=table.scale)
    lines = aggregate(runs, manifest.replace(table=same))
    keys = [tuple(sorted(entry.labels.items())) for entry in manifest.entries]
    return dict(zip(keys, (line for _, line in lines.iterrows()), strict=True))


def _entry_name(labels: Labels, order: Sequence[str]) -> str:
    """Write the labels of an entry, those on the first sweep's axes first."""
    text = dict(labels)
    axes = [*(a for a in order if a in text), *sorted(text.keys() - set(order))]
    return labels_text(text, axes) or "all"


def _line(labels: Labels, sweeps: Sequence[Entries], table: Table) -> list[str]:
    """Write each sweep's number, and from the second sweep on the difference to the first."""
    found = [entries.get(labels) for entries in sweeps]
    columns = [f"mean.{table.statistic}", f"std.{table.statistic}", "error", "freedom"]
    nothing = np.full(len(columns), math.nan)
    numbers = [nothing if e is None else e[columns].to_numpy(float) for e in found]
    base, _, *base_error = numbers[0]
    texts = []
    for i, (entry, (mean, std, *error)) in enumerate(zip(found, numbers, strict=True)):
        n = 0 if entry is None else entry["replicates"] - entry["without"]
        texts.append(spread(mean, std, table.unit) + (f" [{n}]" if n else ""))
        if i:
            four = zip(error, base_error, strict=True)
            half = float(welch(*(np.array([x]) for pair in four for x in pair))[0])
            texts.append(signed_spread(mean - base, half, table.unit))
    return texts
