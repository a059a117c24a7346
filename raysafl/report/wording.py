"""The words and numbers of a report: the same in tables, on the screen and in figures."""

import math
import re
from typing import Any

import numpy as np
import pandas as pd

from raysafl.core.text import count, printable
from raysafl.report.analysis.entries import COUNTS, LEARNT, LEVEL_STATISTIC
from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.winner import Winner
from raysafl.storage.manifest import Manifest, Table
from raysafl.storage.statistics import declaration_of, final_of

# Counts of an entry: replicates that are not in its mean. The last have not ended.
LOST = (*COUNTS, "missing")[1:]
# Before the number of an entry that has not learnt.
UNLEARNT = "‡"
# Before the number of an entry that cannot be told apart from the best one.
CLOSE = "†"
# Stands between a mean and its spread.
SPREAD = " ± "
NOTHING = "–"  # noqa: RUF001 (an en dash, as tables have it)
# What Markdown reads as more than a letter, after what it reads as code.
MARKUP = re.compile(
    r"(?<!`)`[^`]+`(?!`)"
    r"|\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[(\[])|[*`]|(?<!\w)_|_(?!\w)"
)


def as_markdown(text: str) -> str:
    r"""Write a name as Markdown that shows it as it is, but what stands between backticks.

    Labels, titles and the like are text that anybody may have chosen.

    Example:
        >>> print(as_markdown("<b>a_b*"))
        \<b>a_b\*
    """
    one_line = " ".join(printable(text).split())
    return MARKUP.sub(lambda m: m[0] if len(m[0]) > 1 else f"\\{m[0]}", one_line)


def without_markup(text: str) -> str:
    """Return Markdown of one paragraph as plain text."""
    return re.sub(r"\\([^\w\s])|[`*]", lambda m: m[1] or "", text)


def decimals_of(means: "pd.Series[float]") -> int | None:
    """Return how many decimals the numbers of a column have, so that their digits align.

    The largest of them has four digits. It is None, for four digits each, if the largest
    is a thousand times the smallest, or has more than six digits.
    """
    sizes = means.abs()[lambda size: np.isfinite(size) & (size > 0)]
    if sizes.empty or sizes.max() >= min(1000 * sizes.min(), 1e6):
        return None
    return max(0, 3 - math.floor(math.log10(sizes.max())))


def number(value: float, unit: str, decimals: int | None = None) -> str:
    """Write a number for a table, or a dash if it is not known.

    Args:
        value: the number.
        unit: its unit; per cent have two decimals.
        decimals: how many decimals other numbers have; by default they have four digits.
    """
    if math.isnan(value):
        return NOTHING
    decimals = 2 if unit == "%" else decimals
    return f"{value:.4g}" if decimals is None else f"{value:.{decimals}f}"


def spread(mean: float, std: float, unit: str, decimals: int | None = None) -> str:
    """Write mean and spread as `89.10 ± 0.24`, the mean alone, or a dash without a mean."""
    text = number(mean, unit, decimals)
    is_known = not math.isnan(mean) and not math.isnan(std)
    return text + SPREAD + number(std, unit, decimals) if is_known else text


def signed(value: float, unit: str) -> str:
    """Write a difference with its sign, or a dash if it is not known."""
    return f"{'+' if value >= 0 else ''}{number(value, unit)}"


def signed_spread(
    value: float, half: float, unit: str, decimals: int | None = None
) -> str:
    """Write a difference and half the width of its interval, if that is known."""
    return f"{'+' if value >= 0 else ''}{spread(value, half, unit, decimals)}"


def ours(entry: Any, statistic: str, unit: str, decimals: int | None = None) -> str:
    """Write our number of an entry, with the marks that `legend` explains.

    If some replicates are not in the mean, it is followed by `[3 of 5]`. If its round was
    chosen by the test set, the number of the last round follows. If the entry has not
    learnt, a mark stands before it. Without a number it is how the replicates ended.
    """
    ends = [name for name in LOST if entry[name]]
    if ends and ends != ["missing"] and not entry["replicates"]:
        return ends[0]
    text = spread(entry[f"mean.{statistic}"], entry[f"std.{statistic}"], unit, decimals)
    if entry["above_chance"] < LEARNT:
        text = f"{UNLEARNT} {text}"
    final = entry.get(f"mean.{final_of(statistic)}", math.nan)
    if not math.isnan(final):
        text += f", final {number(final, unit, decimals)}"
    used = int(entry["replicates"] - entry["without"])
    total = int(entry["replicates"] + sum(entry[name] for name in LOST))
    return f"{text} [{used} of {total}]" if 0 < used < total else text


def legend(entries: pd.DataFrame) -> str:
    """Explain the marks of entries: not learnt, or not all replicates are in the mean."""
    lines = []
    if (entries["above_chance"] < LEARNT).any():
        lines.append(
            f"{UNLEARNT} marks what has not learnt: its `{LEVEL_STATISTIC}` is less than "
            f"{100 * LEARNT:.0f} % of the way from chance to 100 %."
        )
    used = entries["replicates"] - entries["without"]
    lost = entries[[*LOST, "without"]].sum(axis=1)
    if ((used > 0) & (lost > 0)).any():
        lines.append(
            "[3 of 5] says that only three of five seeds are in the mean; the others have "
            "not finished, or have no value."
        )
    return " ".join(lines)


def winner_text(winner: Winner, manifest: Manifest) -> str:
    """Say in a line of Markdown which run is best, by what, and how good it is on the test set."""

    def value(column: str, own: float, interval: tuple[float, float] | None) -> str:
        declared = declaration_of(column, manifest.columns)
        unit = "%" if declared and declared.is_fraction else ""
        scale = 100 if unit else 1
        ends = ", ".join(number(scale * end, unit) for end in interval or ())
        text = f"`{column}` {number(scale * own, unit)}{unit and ' %'}"
        return f"{text} [{ends}]" if ends else text

    labels = as_markdown(labels_text(winner.labels, manifest.axes) or winner.run_id)
    direction = "highest" if winner.mode == "max" else "lowest"
    best = value(winner.metric, winner.value, winner.interval)
    text = (
        f"Best run: **{labels}**, with the {direction} {best} in the last round, of "
        f"{winner.candidates} finished"
    )
    if winner.is_held_out:
        test = value(winner.quality, winner.test, winner.test_interval)
        text += f"; on the test set, which had no part in the choice: {test}."
    else:
        text += ". It was chosen by the test set, so its score is optimistic."
    if winner.interval:
        text += f" Brackets hold 95 % intervals of the means over {winner.seeds} seeds."
    return (
        f"{text} {len(winner.ties)} of {count(winner.candidates - 1, 'other')} cannot be told "
        f"apart from it in `{winner.metric}`."
    )


def spread_note(entries: pd.DataFrame, table: Table) -> str:
    """Say what of the spread is between partitions; empty if each run has only one."""
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
        f"and {within} between seeds within one."
    )


def quality_text(manifest: Manifest) -> str:
    """Name the column by which the runs are judged, such as `test accuracy`."""
    return manifest.quality.replace("_", " ")


def scale_note(manifest: Manifest) -> str:
    """Warn that the runs are smaller than at full scale; empty at full scale."""
    if manifest.scale == "paper":
        return ""
    return (
        f"Scale: {manifest.scale}. These runs are smaller than at full scale, and may have other "
        "data or networks (see the notes): read trends, not numbers."
    )


def search_note(manifest: Manifest) -> str:
    """Say what a search algorithm or a scheduler went by; empty if there was none."""
    column = manifest.searched_by
    if not column:
        return ""
    text = f"The runs were chosen or stopped by `{column}`, "
    if column.startswith(("test_", "clients_")):
        return (
            f"{text}which is measured on the test set, so the scores of the best runs are "
            "optimistic; with validation samples (`data.validation`) a search goes by these "
            "instead."
        )
    return f"{text}and not by anything that was measured on the test set."
