"""The sections of a report that lay a sweep beside its paper."""

import math

from raysafl.core.text import count
from raysafl.report.analysis.claims import NOT_LEARNT, check_claim
from raysafl.report.analysis.entries import (
    LEARNT,
    distance,
    matches,
    matching,
    readings,
    statistics,
    unplaced,
)
from raysafl.report.analysis.evidence import LEVEL, bias, rule
from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Block, Grid
from raysafl.report.wording import (
    as_markdown,
    number,
    number_or_dash,
    printed_text,
    signed,
    signed_spread,
    spread,
)
from raysafl.storage.statistics import ACCURACY

# Said wherever the nearest of several statistics is named.
CHOSEN_AFTERWARDS = (
    "Mean absolute difference to the paper. The nearest statistic was chosen after the fact: it "
    "says what the paper may have printed, not that the numbers agree."
)


def compared(numbers: Numbers) -> list[Block]:
    """Write how far the table is from the paper's, and how its numbers are judged."""
    table = numbers.shown.table
    if not numbers.shown.paper:
        return []
    judged = numbers.entries[numbers.entries["verdict"] != ""]
    inside = int((judged["verdict"] == "inside").sum())
    width = _in_unit(float(judged["half.diff"].median()), table.unit)
    counted = (
        f"Of {count(len(judged), 'entry')} with a printed number and one of ours, **{inside}** are "
        f"inside the {LEVEL:.0%} prediction interval of our runs, by the rule below; "
        f"{LEVEL * len(judged):.1f} would be in the mean if nothing differed. The median of these "
        f"intervals is ± {width}."
    )
    left = [
        f"- {as_markdown(labels_text(p.labels, list(p.labels)))}: {printed_text(p, table.unit)}"
        for p in unplaced(numbers.shown)
    ]
    absent = "Printed in the paper, but not an entry of this sweep:\n\n"
    return [
        counted if len(judged) else "",
        _distance_text(numbers),
        *_bias_blocks(numbers),
        rule(table),
        absent + "\n".join(left) if left else "",
    ]


def _distance_text(numbers: Numbers) -> str:
    """Say how far the table is from the paper's, and how much the printed numbers spread."""
    # These need a printed number and one of ours, but no spread.
    found = distance(numbers.entries, numbers.shown)
    if not found.entries:
        return ""
    table = numbers.shown.table
    text = (
        f"Distance to the paper: the mean absolute difference of `{table.statistic}` is "
        f"**{_in_unit(found.difference, table.unit)}** over {count(found.entries, 'entry')}"
    )
    if math.isnan(found.printed_std):
        return f"{text}. The paper prints no standard deviations."
    printed = _in_unit(found.printed_std, table.unit)
    return f"{text}; the mean printed standard deviation is **{printed}**."


def _bias_blocks(numbers: Numbers) -> list[Block]:
    """Write whether groups of entries are higher or lower than the paper's on the whole."""
    unit = numbers.shown.table.unit
    rows = [
        [
            row["group"],
            str(row["entries"]),
            str(row["lower"]),
            signed_spread(row["diff"], row["half"], unit),
            signed(row["z"], "%"),
        ]
        for _, row in bias(numbers.entries, numbers.versus, numbers.shown).iterrows()
    ]
    if not rows:
        return []
    text = (
        "Bias: the mean signed difference to the paper (ours minus the paper's). All entries share "
        f"partitions and seeds, so the mean over a group is judged as one number: ± {LEVEL:.0%} "
        "and z are those of the rule for entries."
    )
    head = ["entries", "number", "lower than the paper's", f"Δ ± {LEVEL:.0%}", "z"]
    return [text, Grid("Bias", head, rows)]


def _in_unit(value: float, unit: str) -> str:
    """Write a difference with its unit, which for per cent is percentage points."""
    points = "percentage points" if unit == "%" else unit
    return f"{number(value, unit)} {points}".strip()


def claims(numbers: Numbers) -> list[Block]:
    """Write what the paper says in words, and whether it holds."""
    manifest = numbers.shown
    rows = list[list[str]]()
    for claim in manifest.claims:
        found = check_claim(claim, numbers.entries, manifest)
        others = {NOT_LEARNT: found.not_learnt, "without a number": found.unknown}
        unjudged = [f", {n} {why}" for why, n in others.items() if found.places and n]
        effect = "" if math.isnan(found.effect) else f"{found.effect:+.4g}"
        statistic = f"`{claim.statistic or manifest.table.statistic}`"
        rows.append([claim.text, statistic, found.verdict + "".join(unjudged), effect])
    if not rows:
        return []
    text = "Judged by the means of the entries, without regard to their spread."
    if manifest.quality == ACCURACY:
        text += (
            " *Not learnt*: the "
            "accuracy of one of the compared entries is near chance (`last5` has come less than "
            f"{LEARNT:.0%} of the way from 1 / number of classes to 100 %), so that "
            "their order says nothing."
        )
    head = ["the paper says", "looked at", "verdict", "mean difference or value"]
    return [text, Grid("Claims", head, rows, words=True)]


def nearest_statistics(numbers: Numbers) -> list[Block]:
    """Say which statistic matches the printed numbers best, over all entries and per method."""
    found = matching(numbers.entries, numbers.shown, numbers.shown_layout)
    unit = numbers.shown.table.unit
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
            f"- {as_markdown(str(group))}: **`{best['statistic']}`**, "
            f"{_in_unit(best['distance'], unit)} from the paper's in the mean over "
            f"{count(int(best['entries']), 'entry')}"
            + (f" ({others})" if others else "")
        )
    return [CHOSEN_AFTERWARDS, "\n".join(lines)] if lines else []


def nearest_readings(numbers: Numbers) -> list[Block]:
    """Write how far each reading of the paper is from its printed numbers."""
    found = readings(numbers.entries, numbers.shown)
    table = numbers.shown.table
    names = [n for n in statistics(table) if f"distance.{n}" in found]
    rows = [
        [row["method"], row["reading"], str(row["entries"]), f"`{row['statistic']}`"]
        + [number_or_dash(row[f"distance.{n}"], table.unit) for n in names]
        for _, row in found.iterrows()
    ]
    head = ["method", "reading", "entries", "nearest statistic", *names]
    text = "Mean absolute difference to the printed numbers, the nearest reading first."
    return [text, Grid("Readings", head, rows, heads=2)] if rows else []


def more_printed(numbers: Numbers) -> list[Block]:
    """Write the printed numbers of other statistics beside ours, and their mean distance."""
    manifest = numbers.shown
    unit = manifest.table.unit
    rows = list[list[str]]()
    gaps = dict[str, list[float]]()
    pairs = zip(manifest.entries, numbers.entries.iterrows(), strict=True)
    # Large sweeps have no further printed numbers, and need not be gone through.
    for entry, (_, own) in pairs if manifest.more else ():
        for printed in (p for p in manifest.more if matches(p, entry.labels)):
            name = printed.statistic
            mean = own[f"mean.{name}"]
            gap = mean - printed.mean
            gaps.setdefault(name, []).extend([] if math.isnan(gap) else [abs(gap)])
            rows.append(
                [
                    labels_text(entry.labels, manifest.axes),
                    f"`{name}`",
                    spread(mean, own[f"std.{name}"], unit),
                    printed_text(printed, unit),
                    signed(gap, unit),
                ]
            )
    said = [
        f"`{name}`: {sum(known) / len(known):.4g} from the paper's in the mean over "
        f"{count(len(known), 'entry')}."
        for name, known in gaps.items()
        if known
    ]
    head = ["entry", "statistic", "ours", "paper", "Δ"]
    grid = Grid("Other printed numbers", head, rows, heads=2)
    return [*said, grid] if rows else []
