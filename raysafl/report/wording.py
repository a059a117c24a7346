"""The words and numbers of a report: the same in tables, on the screen and in figures."""

import math
from typing import Any

import pandas as pd

from raysafl.storage.manifest import Manifest, Printed, Table
from raysafl.storage.statistics import FIXED, final_of

# Counts of an entry: replicates that are not in its mean. The last have not ended.
LOST = ("diverged", "failed", "damaged", "missing")
NOTHING = "–"  # noqa: RUF001 (an en dash, as tables have it)


def number(value: float, unit: str) -> str:
    """Write a number for a table: two decimals for per cent, otherwise four digits."""
    return f"{value:.2f}" if unit == "%" else f"{value:.4g}"


def number_or_dash(value: float, unit: str = "%") -> str:
    """Write a number likewise, or a dash if it is not finite."""
    return number(value, unit) if math.isfinite(value) else NOTHING


def signed(value: float, unit: str) -> str:
    """Write a difference with its sign, or a dash if it is not known."""
    return (
        NOTHING
        if math.isnan(value)
        else ("+" if value >= 0 else "") + number(value, unit)
    )


def signed_spread(value: float, half: float, unit: str) -> str:
    """Write a difference and half the width of its interval, if that is known."""
    text = signed(value, unit)
    known = text != NOTHING and not math.isnan(half)
    return f"{text} ± {number(half, unit)}" if known else text


def spread(mean: float, std: float, unit: str) -> str:
    """Write mean and spread as `89.10 ± 0.24`, the mean alone, or a dash without a mean."""
    if math.isnan(mean):
        return NOTHING
    tail = "" if math.isnan(std) else f" ± {number(std, unit)}"
    return number(mean, unit) + tail


def ours(entry: Any, statistic: str, unit: str) -> str:
    """Write our number of an entry.

    If some replicates are not in the mean, it is followed by `[3 of 5]`. If its round was
    chosen by the test set, the number of the last round follows.
    """
    lost = {name: int(entry[name]) for name in LOST}
    text = spread(entry[f"mean.{statistic}"], entry[f"std.{statistic}"], unit)
    final = entry.get(f"mean.{final_of(statistic)}")
    if final is not None and not math.isnan(final):
        text += f", final {number(final, unit)}"
    used = int(entry["replicates"])
    if used and sum(lost.values()):
        return f"{text} [{used} of {used + sum(lost.values())}]"
    ended = [name for name in LOST[:-1] if lost[name]]
    return ended[0] if ended and not used else text


def printed_text(printed: Printed, unit: str) -> str:
    """Write a number of the paper with its standard deviation, if that is printed."""
    std = math.nan if printed.std is None else printed.std
    return spread(printed.mean, std, unit)


def theirs(entry: Any, unit: str) -> str:
    """Write the paper's number of an entry, or nothing if it prints none."""
    mean = entry["paper.mean"]
    return "" if math.isnan(mean) else f"paper {spread(mean, entry['paper.std'], unit)}"


def caption(manifest: Manifest) -> str:
    """Describe what stands in the entries of a table."""
    table = manifest.table
    meaning = manifest.meaning(table.statistic)
    what = f"`{table.statistic}`" + (f" ({meaning})" if meaning else "")
    unit = f", in {table.unit}" if table.unit else ""
    known = manifest.statistic(table.statistic)
    # What the statistics of every run mean is plain from their names.
    if known and not known.higher_is_better and table.statistic not in FIXED:
        unit += "; lower is better"
    if final_of(table.statistic):
        unit += "; its round was chosen by the test set, and *final* is the last round"
    return f"mean ± standard deviation over replicates of {what}{unit}"


def spread_note(entries: pd.DataFrame, table: Table) -> str:
    """Say what of the spread is between partitions; empty if each run has only one.

    Args:
        entries: from `raysafl.report.analysis.entries.aggregate`.
        table: the table that the entries are of.
    """
    several = entries[entries["partitions"] > 1]
    if several.empty:
        return ""
    numbers = " or ".join(f"{n:.0f}" for n in sorted(set(several["partitions"])))
    text = f"± is for one new partition and seed, from {numbers} partitions"
    split = several[several["within"].notna()]
    if split.empty:
        return f"{text} with one seed each, which do not tell the two apart."
    std, between, within = (
        number(math.sqrt((split[column] ** 2).mean()), table.unit)
        for column in (f"std.{table.statistic}", "between", "within")
    )
    return (
        f"{text}. Over all entries it is {std} (root mean square): {between} between partitions, "
        f"and {within} between seeds within one. All entries are listed below."
    )


def quality_text(manifest: Manifest) -> str:
    """Name the column by which the runs are judged, such as `test accuracy`."""
    return manifest.quality.replace("_", " ")


def scale_note(manifest: Manifest) -> str:
    """Warn that the runs are smaller than the paper's; empty at the paper's scale."""
    if manifest.scale == "paper":
        return ""
    return (
        f"Scale: {manifest.scale}. These runs are smaller than the paper's, and may take other "
        "data or networks (see the notes): read trends, not numbers."
    )


def search_note(manifest: Manifest) -> str:
    """Say what a search algorithm or a scheduler went by; empty if there was none."""
    column = manifest.searched_by
    if not column:
        return ""
    if column.startswith("test_"):
        return (
            f"The runs were chosen or stopped by `{column}`, which is measured on the test "
            "set, so the numbers of the best runs are too good; with validation samples "
            "(`data.validation`) a search goes by these instead."
        )
    return (
        f"The runs were chosen or stopped by `{column}`, and not by anything that was "
        "measured on the test set."
    )


def count(n: int, noun: str) -> str:
    """Write a number of things, such as `1 entry` or `2 entries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{n} {noun if n == 1 else plural}"
