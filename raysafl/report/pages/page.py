"""`report.html`: the results of a sweep, how certain they are, their cost and origin."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from raysafl.core.text import format_bytes
from raysafl.report.analysis.entries import aggregate, statistics, unit_of
from raysafl.report.analysis.evidence import LEVEL, rule
from raysafl.report.analysis.layout import (
    Key,
    Layout,
    entries_by_labels,
    head_text,
    label_text,
    labels_text,
)
from raysafl.report.analysis.part import MOST, Part
from raysafl.report.pages.html import (
    Cards,
    Grid,
    Lines,
    Picture,
    Pictures,
    Section,
    badge,
    prose,
    render,
    stacked,
)
from raysafl.report.pages.html import Part as Piece
from raysafl.report.pages.markdown import (
    ALL_FINISHED,
    CHOSEN_AFTERWARDS,
    bias_lines,
    claim_lines,
    distance_lines,
    losses,
    match_lines,
    more_lines,
    reading_lines,
)
from raysafl.report.pages.origin import duration
from raysafl.report.pages.sections import (
    configuration,
    cost,
    how_it_was_made,
)
from raysafl.report.wording import (
    LOST,
    NOTHING,
    caption,
    count,
    judgement,
    number_or_dash,
    ours,
    scale_note,
    search_note,
    signed_spread,
    spread,
    spread_note,
    spread_parts,
    theirs,
)
from raysafl.storage.manifest import Manifest

# An adjusted p-value below this makes a method higher or lower.
CLEAR = 0.05


@dataclass(frozen=True)
class Report:
    """All that a page is made from.

    Attributes:
        manifest: the sweep.
        runs: the rows of `runs.parquet`.
        layout: the layout of the sweep's axes.
        shown: the manifest of the table: the sweep's, or its improvements over a
            baseline.
        shown_layout: the layout of `shown`.
        versus: the runs, or their improvements over the baseline.
        entries: the entries of the table with their verdicts.
        part: the entries that are shown one by one.
        pairs: the paired comparisons of methods.
        pictures: the figures of each section.
        mlflow: where MLflow shows the sweep, as Markdown; empty if that is not known.
    """

    manifest: Manifest
    runs: pd.DataFrame
    layout: Layout
    shown: Manifest
    shown_layout: Layout
    versus: pd.DataFrame
    entries: pd.DataFrame
    part: Part
    pairs: pd.DataFrame
    pictures: dict[str, list[Picture]]
    mlflow: str = ""


def page(report: Report) -> str:
    """Write the whole page as HTML."""
    manifest = report.manifest
    source = f"Paper: {manifest.table.source}. " if manifest.table.source else ""
    sections = [
        Section("summary", "Summary", _summary_parts(report)),
        Section(
            "claims",
            "Claims",
            _from_markdown(claim_lines(report.entries, report.shown)),
        ),
        Section("table", "Table", _table_parts(report)),
        Section("entries", "All entries", _all_entries(report)),
        Section(
            "statistics", "Statistic that matches best", _nearest_statistics(report)
        ),
        Section(
            "readings",
            "Readings",
            _from_markdown(reading_lines(report.entries, report.shown)),
        ),
        Section(
            "more",
            "Other printed numbers",
            _from_markdown(more_lines(report.entries, report.shown)),
        ),
        Section("tests", "Methods, seed by seed", _tests(report)),
        *(
            Section(name.split()[0].lower(), name, [Pictures(pictures)])
            for name, pictures in report.pictures.items()
            if pictures
        ),
        Section("missing", "Missing, diverged, failed", [_losses_part(report)]),
        Section("cost", "Cost", cost(report.runs, manifest, report.layout)),
        Section(
            "notes", "Notes", [prose(manifest.notes)] if manifest.notes.strip() else []
        ),
        Section("configuration", "Configuration", configuration(report.runs)),
        Section(
            "made",
            "How it was made",
            how_it_was_made(report.runs, manifest, report.mlflow),
        ),
    ]
    title = manifest.title or manifest.name
    subtitle = f"{source}Sweep {manifest.name}"
    return render(title, sections, subtitle, scale_note(manifest))


def _summary_parts(report: Report) -> list[Piece]:
    """Write the most important numbers, and how they compare with the paper."""
    entries = report.entries
    runs = report.runs
    # These count what was run, which improvements over a baseline do not.
    counts = aggregate(runs, report.manifest)
    sums = {name: int(counts[name].sum()) for name in ("replicates", *LOST)}
    ids = [entry.run_id for entry in report.manifest.entries]
    # Runs of a grid that has been changed since are left out.
    known = runs[runs["run_id"].isin(ids)] if len(runs) else runs
    each = known.drop_duplicates("run_id") if len(known) else known
    total = {
        c: float(known[c].sum()) if c in known else 0.0
        for c in ("total_bytes", "total_steps")
    }
    seconds = float(each["seconds"].sum()) if "seconds" in each else 0.0
    cards = [
        ("runs", f"{len(each)} of {len(ids)}", False),
        ("seeds finished", f"{sums['replicates']:,}", False),
        *((name, f"{sums[name]:,}", sums[name] > 0) for name in LOST),
        ("time, all runs", duration(seconds), False),
        ("local steps", f"{total['total_steps']:,.0f}", False),
        ("traffic", format_bytes(total["total_bytes"]), False),
    ]
    parts: list[Piece] = [Cards(cards)]
    notes = (search_note(report.manifest), report.part.note)
    parts += [prose(note) for note in notes if note]
    judged = entries[entries["verdict"] != ""]
    if len(judged):
        inside = int((judged["verdict"] == "inside").sum())
        parts.append(
            prose(
                f"Of {count(len(judged), 'printed number')} with a number of ours, **{inside}** "
                f"are inside the {LEVEL:.0%} prediction interval of our runs (rule below the "
                "table)."
            )
        )
    # The distance and the bias need a printed number, but no spread.
    parts += [prose(line) for line in distance_lines(entries, report.shown)]
    bias = bias_lines(entries, report.versus, report.shown)
    parts += [prose("\n\n".join(bias))] if bias else []
    return parts


def _from_markdown(lines: list[str]) -> list[Piece]:
    """Turn a section of `table.md` into a section of the page, without its heading."""
    return [prose("\n\n".join(lines[1:]))] if lines else []


def _table_parts(report: Report) -> list[Piece]:
    """Write the table with the axes that go down and across."""
    manifest = report.part.manifest
    table = manifest.table
    minus = report.manifest.table.minus
    layout = report.part.layout
    down = layout.down
    across = layout.across
    found = entries_by_labels(report.part.entries, layout.axes)
    columns = layout.combinations(manifest, across)

    def entry(key: Key) -> str:
        if key not in found:
            return ""
        here = found[key]
        own = ours(here, table.statistic, table.unit)
        return stacked(own, theirs(here, table.unit), here["verdict"])

    head = [head_text(column, across, table.statistic) for column in columns]
    rows = [
        [_head(row), *(entry((*row, *column)) for column in columns)]
        for row in layout.combinations(manifest, down)
    ]
    versus = (
        f", minus that of the same seed's {labels_text(minus, list(minus))}"
        if minus
        else ""
    )
    text = f"Entries: {caption(manifest)}{versus}."
    note = spread_note(report.entries, table)
    after = [prose(note)] if note else []
    after += [prose(rule(table))] if table.paper else []
    return [prose(text), Grid("The table", [", ".join(down), *head], rows), *after]


def _head(key: Key) -> str:
    """Write the labels of a row."""
    return ", ".join(label_text(value) for value in key)


def _all_entries(report: Report) -> list[Piece]:
    """Write one line per entry: our number, its interval, the paper's, and the verdict."""
    manifest = report.part.manifest
    table = manifest.table
    axes = report.part.layout.axes
    name = table.statistic
    unit = table.unit
    printed = bool(table.paper)
    others = [
        n for n in statistics(table)[1:] if report.entries[f"mean.{n}"].notna().any()
    ]
    head = [", ".join(axes), "replicates", name, f"± {LEVEL:.0%}"]
    if (report.entries["partitions"] > 1).any():
        head += ["between", "within"]
    if printed:
        words = ["paper", f"Δ ± {LEVEL:.0%}", "z", "below"]
        head += [*words[: 3 + report.entries["below"].notna().any()], "verdict"]
    found = entries_by_labels(report.part.entries, axes)
    rows = []
    for key in report.part.layout.combinations(manifest, axes):
        entry = found[key]
        row = [_head(key), str(entry["replicates"]), spread(*_pair(entry, name), unit)]
        row.append(number_or_dash(entry["half.mean"], unit))
        row += spread_parts(report.entries, entry, unit)
        if printed:
            row += [spread(entry["paper.mean"], entry["paper.std"], unit)]
            row += [signed_spread(entry[f"diff.{name}"], entry["half.diff"], unit)]
            row += [
                *judgement(report.entries, entry),
                badge(entry["verdict"]) or NOTHING,
            ]
        units = [unit_of(manifest, n) for n in others]
        more = [spread(*_pair(entry, n), u) for n, u in zip(others, units, strict=True)]
        rows.append([*row, *more])
    means = [
        f"`{n}`: {meaning}"
        for n in statistics(table)
        if (meaning := manifest.meaning(n))
    ]
    return [
        Grid("All entries", [*head, *others], rows),
        prose(
            f"Mean ± standard deviation; ± {LEVEL:.0%} is half the width of the mean's interval "
            "(t). " + "; ".join(means) + "."
        ),
    ]


def _pair(entry: Any, name: str) -> tuple[float, float]:
    """Return mean and standard deviation of a statistic of an entry."""
    return entry[f"mean.{name}"], entry[f"std.{name}"]


def _nearest_statistics(report: Report) -> list[Piece]:
    """Say which statistic matches the printed numbers best."""
    lines = match_lines(report.entries, report.shown, report.shown_layout)
    return [prose(CHOSEN_AFTERWARDS + "\n\n" + "\n".join(lines))] if lines else []


def _tests(report: Report) -> list[Piece]:
    """Write the paired comparisons of every method with the first one."""
    pairs = report.pairs
    manifest = report.manifest
    method = report.layout.method
    if pairs.empty or method is None:
        return []
    others = [axis for axis in report.layout.axes if axis != method]
    unit = manifest.table.unit
    rows = list[list[str]]()
    shown = _of_part(pairs, report.part)
    where = "on this page"
    if len(shown) < len(pairs):
        where = f"of the sweep, of which {len(shown):,} are on this page"
    for _, pair in shown.iterrows():
        place = ", ".join(label_text(pair[f"label.{axis}"]) for axis in others)
        clear = pair["holm"] < CLEAR
        word = ("higher" if pair["diff"] > 0 else "lower") if clear else ""
        p = [
            NOTHING if math.isnan(pair[c]) else f"{pair[c]:.3g}" for c in ("p", "holm")
        ]
        method_here = label_text(pair[f"label.{method}"])
        name = f"{place}, {method_here}" if place else method_here
        rows.append(
            [
                name,
                str(pair["seeds"]),
                signed_spread(pair["diff"], pair["half"], unit),
                *p,
                badge(word),
            ]
        )
    base = label_text(pairs["baseline"].iloc[0])
    text = (
        f"Each method minus {base} in `{manifest.table.statistic}`. Replicates with the same seed "
        f"see the same cohorts, so their differences are tested (those of the means over each "
        f"partition, where there are several partitions): paired t test, two-sided, with "
        f"the mean difference's {LEVEL:.0%} interval. *p (Holm)* is adjusted for all "
        f"{len(pairs)} comparisons {where}; below {CLEAR:g} the method is called higher or "
        "lower. With few seeds and many comparisons few pass: an empty verdict is no evidence "
        "that methods are equal."
    )
    head = [
        ", ".join([*others, method]),
        "seeds",
        f"Δ ± {LEVEL:.0%}",
        "p",
        "p (Holm)",
        "verdict",
    ]
    return [prose(text), Grid("Paired comparisons", head, rows)]


def _of_part(pairs: pd.DataFrame, part: Part) -> pd.DataFrame:
    """Return the comparisons whose labels are on the page."""
    if not part.note:
        return pairs
    there = pd.Series(True, index=pairs.index)
    for axis, values in part.layout.values.items():
        there &= pairs[f"label.{axis}"].isin(values)
    return pairs[there].iloc[:MOST]


def _losses_part(report: Report) -> Piece:
    """List the replicates that are not in the means."""
    lines = losses(report.entries, report.versus, report.shown, report.shown_layout)
    explanation = "Diverged and failed replicates are not in the means."
    return Lines([*lines, explanation]) if lines else Lines([ALL_FINISHED])
