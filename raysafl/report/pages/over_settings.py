"""The section of a report on how its methods compare over all settings."""

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
    """Write how the methods compare over all settings."""
    methods = numbers.methods
    if len(numbers.ranking.ranks) < 2:
        return []
    if not methods.is_told:
        return standings(numbers)
    unit = numbers.manifest.table.unit
    better = methods.improvement.set_index(["over", "method"])
    over = list(better.index.unique("over"))
    rows = []
    for _, own in methods.interquartile_means.iterrows():
        pairs = better.reindex([(other, own["method"]) for other in over])
        percent = 100 * pairs[["probability", "low", "high"]]
        rows.append(
            [
                own["method"],
                _with_interval(own[["iqm", "low", "high"]], unit),
                *(_with_interval(pair, "", 1) for _, pair in percent.iterrows()),
                f"{own['diverged']} of {own['replicates']}",
            ]
        )
    better_than = [f"better than {other}" for other in over]
    head = [
        numbers.layout.method or "",
        "IQM",
        *better_than,
        "worst score",
    ]
    seeds = methods.rows.groupby(["setting", "method"])["seed"].nunique()
    text = (
        f"Over the {count(len(methods.ranks), 'setting')} in which all methods have a score, with "
        f"{' or '.join(map(str, sorted(set(seeds))))} seeds each. The score is "
        f"`{numbers.manifest.table.statistic}`{unit and f', in {unit}'}. *IQM* is the "
        "interquartile mean, which is the mean of the middle half of a method's scores. "
        "*Better than* is the share of settings and seeds, in %, in which a method scores "
        "better than the named one: the baseline, or the method with the second best mean rank. "
        f"Brackets hold {LEVEL:.0%} intervals: of the IQM by a bootstrap, where there are enough "
        "seeds for one, and of a share by Clopper and Pearson, over the seeds of each setting, "
        "or over the partitions if all runs have several. *Worst score* counts the seeds that "
        "diverged, or never reached the value of a count of rounds: they rank below all others."
    )
    return [*standings(numbers), text, Grid("Methods", head, rows)]


def _with_interval(
    own: "pd.Series[float]", unit: str, decimals: int | None = None
) -> str:
    """Write a number with the ends of its interval, as `91.2 [90.8, 91.4]`."""
    value, low, high = (number(end, unit, decimals) for end in own)
    return value if low == high == NOTHING else f"{value} [{low}, {high}]"
