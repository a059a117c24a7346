"""The words and numbers of a report, the same in the table, on the screen and in figures."""

import math
from typing import Any

from raysafl.storage.manifest import Manifest
from raysafl.storage.statistics import STATISTICS

MEANINGS = STATISTICS
NOTHING = "–"  # noqa: RUF001 (an en dash, as tables have it)


def number(value: float, unit: str) -> str:
    """A number as tables have it: two decimals for per cent, else four digits."""
    return f"{value:.2f}" if unit == "%" else f"{value:.4g}"


def signed(value: float, unit: str) -> str:
    """A difference with its sign; a dash if there is none."""
    return NOTHING if math.isnan(value) else ("+" if value >= 0 else "") + number(value, unit)


def spread(mean: float, std: float, unit: str) -> str:
    """`89.10 ± 0.24`; without the second part if there is no spread; a dash if no mean."""
    if math.isnan(mean):
        return NOTHING
    tail = "" if math.isnan(std) else f" ± {number(std, unit)}"
    return number(mean, unit) + tail


def ours(cell: Any, statistic: str, unit: str) -> str:
    """Our number in a cell, with the count of replicates if some are not in it."""
    lost = {name: int(cell[name]) for name in ("diverged", "failed", "missing")}
    text = spread(cell[f"mean.{statistic}"], cell[f"std.{statistic}"], unit)
    used = int(cell["replicates"])
    if used and sum(lost.values()):
        return f"{text} [{used} of {used + sum(lost.values())}]"
    if not used and (lost["diverged"] or lost["failed"]):
        return "diverged" if lost["diverged"] else "failed"
    return text


def theirs(cell: Any, unit: str) -> str:
    """The paper's number in a cell, or nothing."""
    mean = cell["paper.mean"]
    return "" if math.isnan(mean) else f"paper {spread(mean, cell['paper.std'], unit)}"


def caption(manifest: Manifest) -> str:
    """What stands in a cell, in words."""
    table = manifest.table
    meaning = MEANINGS.get(table.statistic)
    what = f"`{table.statistic}`" + (f" ({meaning})" if meaning else "")
    unit = f", in {table.unit}" if table.unit else ""
    return f"mean ± standard deviation over replicates of {what}{unit}"


def scale_note(manifest: Manifest) -> str:
    """A warning for runs that are smaller than the paper's; empty at the paper's scale."""
    if manifest.scale == "paper":
        return ""
    return (
        f"Scale: {manifest.scale}. These runs are smaller than the paper's, and may take other "
        "data or networks (see the notes): read trends, not numbers."
    )


def count(n: int, noun: str) -> str:
    """A number of things: `1 cell`, `2 cells`."""
    return f"{n} {noun}{'' if n == 1 else 's'}"
