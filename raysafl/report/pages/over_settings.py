"""The section of a report on how its methods compare over all settings."""

from dataclasses import replace

import pandas as pd

from raysafl.core.text import count
from raysafl.report.analysis.evidence import LEVEL
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Block, Grid
from raysafl.report.pages.sections import standings
from raysafl.report.wording import NOTHING, number

# The title of the section.
OVER_SETTINGS = "Methods over all settings"


def over_settings(numbers: Numbers) -> list[Block]:
    """Write how the methods stand and compare over all settings, one row for each."""
    if len(numbers.ranking.ranks) < 2 or not (standing := standings(numbers)):
        return []
    methods = numbers.methods
    text, grid = standing
    assert isinstance(grid, Grid)
    if not methods.is_told:
        return standing
    unit = numbers.manifest.table.unit
    means = methods.interquartile_means.set_index("method")[["iqm", "low", "high"]]
    better = methods.improvement.set_index(["over", "method"])
    better = 100 * better[["probability", "low", "high"]]
    columns: dict[str, tuple[pd.DataFrame, str, int | None]]
    columns = {"IQM": (means, unit, None)}
    for other in better.index.unique("over"):
        columns[f"better than {other}"] = (better.loc[other], "", 1)
    rows = [
        [*row, *(_with_interval(row[0], *column) for column in columns.values())]
        for row in grid.rows
    ]
    head = [*grid.head, *columns]
    seeds = set(methods.rows.groupby(["setting", "method"])["seed"].nunique())
    more = (
        "*IQM* is the interquartile mean of the scores in the "
        f"{count(len(methods.ranks), 'setting')} in which all methods have some, with "
        f"{' or '.join(map(str, sorted(seeds)))} seeds each. *Better than* is the share of these "
        "settings and seeds, in %, in which a method scores better than the baseline, or than the "
        "method with the second best mean rank. What diverged has the worst score. Brackets hold "
        f"{LEVEL:.0%} intervals, where there are enough seeds for one."
    )
    return [f"{text} {more}", replace(grid, head=head, rows=rows)]


def _with_interval(
    method: str, columns: pd.DataFrame, unit: str, decimals: int | None
) -> str:
    """Write a method's number with the ends of its interval, as `91.2 [90.8, 91.4]`."""
    (own,) = columns.reindex([method]).to_numpy(float)
    value, low, high = (number(end, unit, decimals) for end in own)
    return value if low == high == NOTHING else f"{value} [{low}, {high}]"
