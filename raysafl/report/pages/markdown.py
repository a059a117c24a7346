"""The report of a sweep as Markdown, for `table.md`."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pandas as pd

from raysafl.report.analysis import claims
from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.entries import (
    distance,
    matches,
    matching,
    readings,
    statistics,
    unit_of,
    unplaced,
)
from raysafl.report.analysis.evidence import LEVEL, bias, judged, rule
from raysafl.report.analysis.layout import (
    Key,
    Layout,
    entries_by_labels,
    head_text,
    label_text,
    labels_text,
)
from raysafl.report.analysis.part import Part
from raysafl.report.pages.origin import origin_facts
from raysafl.report.wording import (
    NOTHING,
    caption,
    count,
    judgement,
    number,
    number_or_dash,
    ours,
    scale_note,
    search_note,
    signed,
    signed_spread,
    spread,
    spread_note,
    spread_parts,
    theirs,
)
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import ACCURACY, FIXED

# Said wherever the nearest of several statistics is named.
CHOSEN_AFTERWARDS = (
    "Mean absolute difference to the paper. The nearest statistic was chosen after the fact: it "
    "says what the paper may have printed, not that the numbers agree."
)
ALL_FINISHED = "Nothing: every replicate finished."
# Largest number of missing runs that are named.
NAMED = 6
# Largest number of lines on runs that ended badly.
LINES = 300


def _escape(text: str) -> str:
    """Write a text on one line, so that it can stand in an entry of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def pipe_table(head: list[str], rows: Iterable[list[str]], left: int) -> str:
    """Write a Markdown table, its first `left` columns flush left, the others flush right."""
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join(
        f"| {' | '.join(map(_escape, row))} |" for row in [head, rule, *rows]
    )


def _pivot(entries: pd.DataFrame, manifest: Manifest, layout: Layout) -> str:
    """Write the table with the axes that go down and across."""
    table = manifest.table
    down = layout.down
    across = layout.across
    found = entries_by_labels(entries, layout.axes)

    def text(key: Key) -> str:
        if key not in found:
            return ""
        printed = theirs(found[key], table.unit)
        own = ours(found[key], table.statistic, table.unit)
        return f"{own} ({printed})" if printed else own

    columns = layout.combinations(manifest, across)
    head = [head_text(column, across, table.statistic) for column in columns]
    rows = [
        [*map(label_text, row), *(text((*row, *column)) for column in columns)]
        for row in layout.combinations(manifest, down)
    ]
    return pipe_table([*down, *head], rows, len(down))


def _long(entries: pd.DataFrame, manifest: Manifest, layout: Layout) -> str:
    """Write one line per entry, with all statistics."""
    axes = layout.axes
    unit = manifest.table.unit
    names = [
        n for n in statistics(manifest.table) if entries[f"mean.{n}"].notna().any()
    ]
    printed = bool(entries["paper.mean"].notna().any())
    gaps = [n for n in names if printed and entries[f"diff.{n}"].notna().any()]
    parts = ["between", "within"] if (entries["partitions"] > 1).any() else []
    words = ["paper", "z", "below"][: 2 + entries["below"].notna().any()]
    words = [*words, "verdict"] if printed else []
    head = [*axes, "replicates", *words, *(f"Δ {n}" for n in gaps), *parts, *names]
    units = {n: unit if n in FIXED else unit_of(manifest, n) for n in names}
    found = entries_by_labels(entries, axes)
    rows = []
    for key in layout.combinations(manifest, axes):
        entry = found[key]
        paper = [
            spread(entry["paper.mean"], entry["paper.std"], unit),
            *judgement(entries, entry),
            entry["verdict"] or NOTHING,
        ]
        differences = [signed(entry[f"diff.{n}"], unit) for n in gaps]
        own = [spread(entry[f"mean.{n}"], entry[f"std.{n}"], units[n]) for n in names]
        rows.append(
            [
                *map(label_text, key),
                str(entry["replicates"]),
                *paper[: len(words)],
                *differences,
                *spread_parts(entries, entry, unit),
                *own,
            ]
        )
    return pipe_table(head, rows, len(axes))


def distance_lines(entries: pd.DataFrame, manifest: Manifest) -> list[str]:
    """Say how far the table is from the paper's, and how much the printed numbers spread.

    Args:
        entries: from `compare`.
        manifest: the sweep.

    Returns:
        One paragraph; none if no entry has both a printed number and one of ours.
    """
    found = distance(entries, manifest)
    if not found.entries:
        return []
    table = manifest.table
    text = (
        f"Distance to the paper: the mean absolute difference of `{table.statistic}` is "
        f"**{_in_unit(found.difference, table.unit)}** over {count(found.entries, 'entry')}"
    )
    if math.isnan(found.printed_std):
        return [f"{text}. The paper prints no standard deviations."]
    printed = _in_unit(found.printed_std, table.unit)
    return [f"{text}; the mean printed standard deviation is **{printed}**."]


def bias_lines(
    entries: pd.DataFrame, runs: pd.DataFrame, manifest: Manifest
) -> list[str]:
    """Write whether groups of entries are higher or lower than the paper's on the whole.

    Args:
        entries: from `judged`.
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
    """
    unit = manifest.table.unit
    rows = [
        [
            row["group"],
            str(row["entries"]),
            str(row["lower"]),
            signed_spread(row["diff"], row["half"], unit),
            signed(row["z"], "%"),
        ]
        for _, row in bias(entries, runs, manifest).iterrows()
    ]
    if not rows:
        return []
    text = (
        "Bias: the mean signed difference to the paper (ours minus the paper's). All entries share "
        f"partitions and seeds, so the mean over a group is judged as one number: ± {LEVEL:.0%} "
        "and z are those of the rule for entries."
    )
    head = ["entries", "number", "lower than the paper's", f"Δ ± {LEVEL:.0%}", "z"]
    return [text, pipe_table(head, rows, 1)]


def _in_unit(value: float, unit: str) -> str:
    """Write a difference with its unit, which for per cent is percentage points."""
    points = "percentage points" if unit == "%" else unit
    return f"{number(value, unit)} {points}".strip()


def match_lines(entries: pd.DataFrame, manifest: Manifest, layout: Layout) -> list[str]:
    """Say which statistic matches the printed numbers best, over all entries and per method."""
    found = matching(entries, manifest, layout)
    unit = manifest.table.unit
    lines = []
    for group, rows in found.groupby("group", sort=False):
        best = rows[rows["best"]].iloc[0]
        others = ", ".join(
            f"`{row['statistic']}` {number(row['distance'], unit)}"
            + (
                f" ({count(row['entries'], 'entry')} only)"
                if row["entries"] < best["entries"]
                else ""
            )
            for _, row in rows[~rows["best"]].iterrows()
        )
        lines.append(
            f"- {group}: **`{best['statistic']}`**, {_in_unit(best['distance'], unit)} "
            f"from the paper's in the mean over {count(int(best['entries']), 'entry')}"
            + (f" ({others})" if others else "")
        )
    return lines


def _paper_lines(
    entries: pd.DataFrame, manifest: Manifest, layout: Layout
) -> list[str]:
    lines = match_lines(entries, manifest, layout)
    if lines:
        lines = [
            "## Which statistic matches the printed numbers best",
            CHOSEN_AFTERWARDS,
            "\n".join(lines),
        ]
    left = [
        f"- {labels_text(p.labels, list(p.labels))}: "
        + spread(p.mean, math.nan if p.std is None else p.std, manifest.table.unit)
        for p in unplaced(manifest)
    ]
    if left:
        lines += [
            "Printed in the paper, but not an entry of this sweep:",
            "\n".join(left),
        ]
    return lines


def more_lines(entries: pd.DataFrame, manifest: Manifest) -> list[str]:
    """Write the printed numbers of other statistics beside ours, and their mean distance."""
    table = manifest.table
    lines = list[list[str]]()
    gaps: dict[str, list[float]] = {}
    if not table.more:
        return []
    for entry, (_, numbers) in zip(manifest.entries, entries.iterrows(), strict=True):
        for printed in (p for p in table.more if matches(p, entry.labels)):
            name = printed.statistic
            unit = table.unit
            own = numbers[f"mean.{name}"]
            std = numbers[f"std.{name}"]
            gap = own - printed.mean
            gaps.setdefault(name, []).append(gap)
            paper = spread(
                printed.mean, math.nan if printed.std is None else printed.std, unit
            )
            where = labels_text(entry.labels, manifest.axes)
            lines.append(
                [where, f"`{name}`", spread(own, std, unit), paper, signed(gap, unit)]
            )
    known = {
        name: [abs(x) for x in own if not math.isnan(x)] for name, own in gaps.items()
    }
    said = [
        f"`{name}`: {sum(own) / len(own):.4g} from the paper's in the mean over "
        f"{count(len(own), 'entry')}."
        for name, own in known.items()
        if own
    ]
    head = ["entry", "statistic", "ours", "paper", "Δ"]
    return (
        ["## Other printed numbers", *said, pipe_table(head, lines, 2)] if lines else []
    )


def claim_lines(entries: pd.DataFrame, manifest: Manifest) -> list[str]:
    """Write what the paper says in words, and whether it holds."""
    head, *lines = claims.rows(entries, manifest)
    if not lines:
        return []
    rule = "Judged by the means of the entries, without regard to their spread."
    if manifest.quality == ACCURACY:
        rule += (
            " *Not learnt*: the "
            "accuracy of one of the compared entries is near chance (`last5` has come less than "
            f"{claims.LEARNT:.0%} of the way from 1 / number of classes to 100 %), so that "
            "their order says nothing."
        )
    return [
        "## What the paper says, and whether it holds",
        rule,
        pipe_table(head, lines, 3),
    ]


def reading_lines(entries: pd.DataFrame, manifest: Manifest) -> list[str]:
    """Write how far each reading of the paper is from its printed numbers."""
    found = readings(entries, manifest)
    unit = manifest.table.unit
    if found.empty:
        return []
    names = [n for n in statistics(manifest.table) if f"distance.{n}" in found]
    head = ["method", "reading", "entries", "nearest statistic", *names]
    lines = [
        [row["method"], row["reading"], str(row["entries"]), f"`{row['statistic']}`"]
        + [number_or_dash(row[f"distance.{n}"], unit) for n in names]
        for _, row in found.iterrows()
    ]
    explanation = (
        "Mean absolute difference to the printed numbers, the nearest reading first."
    )
    return [
        "## Which reading of the paper is nearest",
        explanation,
        pipe_table(head, lines, 4),
    ]


def losses(
    entries: pd.DataFrame, runs: pd.DataFrame, manifest: Manifest, layout: Layout
) -> list[str]:
    """Say which replicates are not in the means, and why.

    There is one line per run and reason, and one line for all runs that have not begun.
    If there are too many, one line says how many more there would be.
    """
    lines = []
    absent = []
    begun = set[str]()
    ends = dict[Any, list[tuple[str, int]]]()
    if len(runs):
        begun = set(runs["run_id"])
        bad = runs[runs["status"].isin([status for status in Status if status.bad])]
        groups = bad[["run_id", "status", "reason"]].groupby("run_id")
        ends = {run_id: _bad_ends(rows) for run_id, rows in groups}
    for missing, entry in zip(entries["missing"], manifest.entries, strict=True):
        where = labels_text(entry.labels, layout.axes) or manifest.name
        found = ends.get(entry.run_id, [])
        lines += [f"{where}: {count(rows, 'replicate')} {kind}" for kind, rows in found]
        if missing and entry.run_id in begun:
            lines.append(f"{where}: {count(int(missing), 'replicate')} missing")
        elif missing:
            absent.append(where)
    if len(lines) > LINES:
        more = f"and {len(lines) - LINES:,} more lines: `runs.parquet` has all"
        lines = [*lines[:LINES], more]
    if absent:
        rest = f" and {len(absent) - NAMED} more" if len(absent) > NAMED else ""
        missing_runs = (
            f"{count(len(absent), 'run')} of {len(manifest.entries)} missing: "
        )
        lines.append(missing_runs + "; ".join(absent[:NAMED]) + rest)
    return lines


def _bad_ends(bad: pd.DataFrame) -> list[tuple[str, int]]:
    """Return how replicates of a run ended badly (`diverged: <reason>`), and how many."""
    reasons = bad["reason"].fillna("").astype(str).map(_escape)
    kinds = bad["status"].str.cat(reasons, sep=": ").str.removesuffix(": ")
    return list(Counter(kinds).items())


def markdown(runs: pd.DataFrame, manifest: Manifest) -> str:
    """Write the content of `table.md`.

    It has the table, all statistics, the comparison with the paper, what is missing,
    and how the sweep was made. Only a part of the sweep may have run: entries without a
    number have a dash.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.

    Raises:
        ValueError: the table names an unknown axis or statistic.
    """
    minus = labels_text(manifest.table.minus, list(manifest.table.minus))
    versus = f", minus that of the same seed's {minus}" if minus else ""
    runs, manifest = improvements(runs, manifest)
    layout = Layout.of(manifest)
    entries = judged(runs, manifest)
    part = Part.of(entries, manifest, layout)
    note = scale_note(manifest)
    source = manifest.table.source
    parts = [
        f"# {manifest.title or manifest.name}",
        *([f"**{note}**"] if note else []),
        f"Entries: {caption(manifest)}{versus}."
        + (f" Paper: {source}." if source else ""),
        search_note(manifest),
        part.note,
        _pivot(part.entries, part.manifest, part.layout),
        spread_note(entries, manifest.table),
        *distance_lines(entries, manifest),
        *bias_lines(entries, runs, manifest),
        "## All statistics",
        rule(manifest.table) if manifest.table.paper else "",
        _long(part.entries, part.manifest, part.layout),
        "\n".join(
            f"- `{n}`: {meaning}"
            for n in statistics(manifest.table)
            if (meaning := manifest.meaning(n))
        ),
        *claim_lines(entries, manifest),
        *more_lines(entries, manifest),
        *_paper_lines(entries, manifest, layout),
        *reading_lines(entries, manifest),
        "## Missing, diverged, failed",
        "Diverged and failed replicates are not in the means.",
        "\n".join(f"- {line}" for line in losses(entries, runs, manifest, layout))
        or ALL_FINISHED,
        *(["## Notes", manifest.notes.strip()] if manifest.notes else []),
        "## How it was made",
        "\n".join(
            f"- {name}: {value}" for name, value in origin_facts(runs, manifest).items()
        ),
        *(
            ["To run it again:", f"```sh\n{manifest.command}\n```"]
            if manifest.command
            else []
        ),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
