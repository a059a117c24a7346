"""The page that lays a measured sweep beside its paper.

    python -m experiments.papercheck.page results/measured/safari_table8_mnist

It prints Markdown. Run it from the repository's root, with the folders of sweeps that come
from the files of experiments/.
"""

import math
import sys
from pathlib import Path

from experiments.papercheck.comparison import Printed
from experiments.papercheck.judging import (
    NOT_LEARNT,
    Compared,
    bias,
    check_claim,
    distance,
    matching,
    readings,
)
from raysafl.core.text import count
from raysafl.report.analysis.entries import LEARNT, statistics
from raysafl.report.analysis.evidence import LEVEL
from raysafl.report.analysis.layout import labels_text
from raysafl.report.pages.document import Block, Cell, Document, Grid, markdown
from raysafl.report.wording import (
    NOTHING,
    as_markdown,
    number,
    scale_note,
    signed,
    signed_spread,
    spread,
)
from raysafl.storage.manifest import label_text
from raysafl.storage.statistics import ACCURACY

VERDICTS = {
    "inside": "Δ ± holds 0: our runs give such a number",
    "outside": "it does not: runs like ours give such a number in 5 % of cases or fewer",
}
# Said wherever the nearest of several statistics is named.
CHOSEN_AFTERWARDS = (
    "Mean absolute difference to the paper. The nearest statistic was chosen after the fact: it "
    "says what the paper may have printed, not that the numbers agree."
)


def comparison_page(found: Compared) -> str:
    """Write the page as Markdown."""
    manifest = found.manifest
    source = as_markdown(found.comparison.source or "its paper")
    minus = found.comparison.minus
    less = (
        f" minus that of the same seed's {labels_text(minus, list(minus))}"
        if minus
        else ""
    )
    return markdown(
        Document(
            title=f"{manifest.title or manifest.name}: beside {source}",
            warning=scale_note(manifest),
            lead=f"Compared is `{found.name}`{as_markdown(less)}.",
            sections={
                "Compared with the paper": [*compared(found), *all_entries(found)],
                "Claims": claims(found),
                "Statistic that matches best": nearest_statistics(found),
                "Readings": nearest_readings(found),
                "Other printed numbers": more_printed(found),
            },
        )
    )


def rule(found: Compared) -> str:
    """Explain how a printed number is judged, as Markdown."""
    words = "\n".join(f"- **{name}**: {why}" for name, why in VERDICTS.items())
    seeds = found.comparison.seeds
    return (
        f"A printed number of `{found.name}` is judged by its place among the results that "
        "one new partition would give. Between partitions and between seeds within one, results "
        "have standard deviations, from an analysis of variance. The paper's number is the mean "
        f"of {count(seeds, 'seed')} on one partition, so z = (ours - paper) / "
        f"sqrt(between² + within² / {seeds} + (standard error of our mean)²). Δ is ours "
        f"minus the paper's, and its ± the half width of the {LEVEL:.0%} prediction interval "
        "(Student's t, with one degree of freedom fewer than there are partitions, or seeds if "
        "there is one partition). *Below* is the share of our partitions with a lower mean than "
        "the paper's. With one partition, nothing is known of other partitions, and between "
        f"counts as 0; with one seed for each, their sum counts as between.\n\n{words}"
    )


def all_entries(found: Compared) -> list[Block]:
    """Write one line per entry: its statistics, and how the printed number is judged."""
    manifest, entries = found.manifest, found.entries
    unit = manifest.table.unit
    rows = list[list[Cell]]()
    for entry, (_, own) in zip(manifest.entries, entries.iterrows(), strict=True):
        share = own["below"]
        rows.append(
            [
                *map(label_text, entry.key(manifest.axes)),
                spread(own[f"mean.{found.name}"], own[f"std.{found.name}"], unit),
                spread(own["paper.mean"], own["paper.std"], unit),
                signed_spread(own[f"diff.{found.name}"], own["half.diff"], unit),
                signed(own["z"], "%"),
                NOTHING if math.isnan(share) else f"{share:.0%}",
                own["verdict"] or NOTHING,
            ]
        )
    head = ["ours", "paper", f"Δ ± {LEVEL:.0%}", "z", "below", "verdict"]
    return [Grid("All entries", [*manifest.axes, *head], rows, len(manifest.axes))]


def printed_text(printed: Printed, unit: str) -> str:
    """Write a number of the paper with its standard deviation, if that is printed."""
    std = math.nan if printed.std is None else printed.std
    return spread(printed.mean, std, unit)


def compared(found: Compared) -> list[Block]:
    """Write how far the table is from the paper's, and how its numbers are judged."""
    table = found.manifest.table
    if not found.paper:
        return []
    judged = found.entries[found.entries["verdict"] != ""]
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
        for p in found.unplaced
    ]
    absent = "Printed in the paper, but not an entry of this sweep:\n\n"
    return [
        counted if len(judged) else "",
        _distance_text(found),
        *_bias_blocks(found),
        rule(found),
        absent + "\n".join(left) if left else "",
    ]


def _distance_text(found: Compared) -> str:
    """Say how far the table is from the paper's, and how much the printed numbers spread."""
    # These need a printed number and one of ours, but no spread.
    total = distance(found)
    if not total.entries:
        return ""
    table = found.manifest.table
    text = (
        f"Distance to the paper: the mean absolute difference of `{table.statistic}` is "
        f"**{_in_unit(total.difference, table.unit)}** over {count(total.entries, 'entry')}"
    )
    if math.isnan(total.printed_std):
        return f"{text}. The paper prints no standard deviations."
    printed = _in_unit(total.printed_std, table.unit)
    return f"{text}; the mean printed standard deviation is **{printed}**."


def _bias_blocks(found: Compared) -> list[Block]:
    """Write whether groups of entries are higher or lower than the paper's on the whole."""
    unit = found.manifest.table.unit
    rows = [
        [
            row["group"],
            str(row["entries"]),
            str(row["lower"]),
            signed_spread(row["diff"], row["half"], unit),
            signed(row["z"], "%"),
        ]
        for _, row in bias(found).iterrows()
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


def claims(found: Compared) -> list[Block]:
    """Write what the paper says in words, and whether it holds."""
    rows = list[list[str]]()
    for claim in found.comparison.claims:
        own = check_claim(claim, found)
        others = {NOT_LEARNT: own.not_learnt, "without a number": own.unknown}
        unjudged = [f", {n} {why}" for why, n in others.items() if own.places and n]
        effect = "" if math.isnan(own.effect) else f"{own.effect:+.4g}"
        statistic = f"`{claim.statistic or found.name}`"
        rows.append([claim.text, statistic, own.verdict + "".join(unjudged), effect])
    if not rows:
        return []
    text = "Judged by the means of the entries, without regard to their spread."
    if found.manifest.quality == ACCURACY:
        text += (
            " *Not learnt*: the "
            "accuracy of one of the compared entries is near chance (`last5` has come less than "
            f"{LEARNT:.0%} of the way from 1 / number of classes to 100 %), so that "
            "their order says nothing."
        )
    head = ["the paper says", "looked at", "verdict", "mean difference or value"]
    return [text, Grid("Claims", head, rows, heads=len(head))]


def nearest_statistics(found: Compared) -> list[Block]:
    """Say which statistic matches the printed numbers best, over all entries and per method."""
    unit = found.manifest.table.unit
    lines = []
    for group, rows in matching(found).groupby("group", sort=False):
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


def nearest_readings(found: Compared) -> list[Block]:
    """Write how far each reading of the paper is from its printed numbers."""
    nearest = readings(found)
    table = found.manifest.table
    names = [n for n in statistics(table) if f"distance.{n}" in nearest]
    rows = [
        [row["method"], row["reading"], str(row["entries"]), f"`{row['statistic']}`"]
        + [number(row[f"distance.{n}"], table.unit) for n in names]
        for _, row in nearest.iterrows()
    ]
    head = ["method", "reading", "entries", "nearest statistic", *names]
    text = "Mean absolute difference to the printed numbers, the nearest reading first."
    return [text, Grid("Readings", head, rows, heads=2)] if rows else []


def more_printed(found: Compared) -> list[Block]:
    """Write the printed numbers of other statistics beside ours, and their mean distance."""
    manifest = found.manifest
    unit = manifest.table.unit
    rows = list[list[str]]()
    gaps = dict[str, list[float]]()
    pairs = zip(manifest.entries, found.entries.iterrows(), strict=True)
    for entry, (_, own) in pairs:
        for printed in (p for p in found.more if p.is_of(entry.labels)):
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


def main() -> None:
    """Print the pages of the sweeps whose folders the command line names."""
    # The tools read what this package judges.
    from experiments.tools.measured import comparison_of, read_sweep

    for folder in map(Path, sys.argv[1:]):
        sweep = read_sweep(folder)
        comparison = comparison_of(sweep.manifest.name)
        print(comparison_page(Compared.of(comparison, sweep.runs, sweep.manifest)))


if __name__ == "__main__":
    main()
