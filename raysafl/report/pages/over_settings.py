"""The section of a report on how its methods compare over all settings."""

import pandas as pd

from raysafl.core.text import count
from raysafl.report.analysis.evidence import LEVEL
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Block, Grid
from raysafl.report.pages.sections import setting_text
from raysafl.report.wording import NOTHING, number_or_dash

# The title of the section.
OVER_SETTINGS = "Methods over all settings"


def over_settings(numbers: Numbers) -> list[Block]:
    """Write how the methods compare over all settings."""
    methods = numbers.methods
    if not methods.is_told:
        return []
    unit = numbers.manifest.table.unit
    statistic = numbers.manifest.table.statistic
    waits = statistic.startswith("rounds_to_")
    worst = "diverged or never reached" if waits else "diverged"
    never = ", and so is one that never reached the value" if waits else ""
    better = methods.improvement.set_index(["over", "method"])
    over = list(better.index.unique("over"))
    rows = []
    for _, own in methods.interquartile_means.iterrows():
        row = [own["method"], f"{own['rank']:.1f}"]
        row.append(_interval(own[["iqm", "low", "high"]], unit))
        pairs = better.reindex([(other, own["method"]) for other in over])
        percent = 100 * pairs[["probability", "low", "high"]]
        row += [_interval(pair, "", 1) for _, pair in percent.iterrows()]
        rows.append([*row, f"{own['diverged']} of {own['replicates']}"])
    head = [numbers.layout.method or "", "mean rank", "IQM"]
    head += [f"better than {other}" for other in over]
    head.append(worst)
    blocks = len(methods.ranks)
    unit_of = f", in {unit}" if unit else ""
    seeds = methods.rows.groupby(["setting", "method"])["seed"].nunique()
    each = " or ".join(map(str, sorted(set(seeds))))
    none = methods.interquartile_means[["low", "high"]].isna().all(axis=None)
    hint = (
        "With so few seeds an interval of the IQM would fail too often. "
        if none
        else ""
    )
    text = (
        f"These numbers are over the {count(blocks, 'setting')} in which all methods have a score, "
        f"with {each} seed{'' if each == '1' else 's'} each. {setting_text(numbers)}The score is "
        f"`{statistic}`{unit_of}. *Mean rank* is the mean over settings, of which 1 is the best. "
        "*IQM* is the interquartile mean, which is the mean of the middle half of a method's "
        "scores over settings and seeds. *Better than* is the share of settings and seeds, in %, "
        "in which a method scores better than the named one, which is the baseline or has the "
        f"second best mean rank. Brackets hold {LEVEL:.0%} intervals: of the IQM by a bootstrap, "
        "of a share by Clopper and Pearson, over the seeds of each setting, or over the partitions "
        f"if all runs have several. {hint}A diverged replicate is not left out: it is "
        f"worse than all others{never}."
    )
    return [text, Grid("Methods", head, rows)]


def _interval(own: "pd.Series[float]", unit: str, decimals: int | None = None) -> str:
    """Write a number with the ends of its interval, as `91.2 [90.8, 91.4]`."""
    value, low, high = (number_or_dash(end, unit, decimals) for end in own)
    return value if low == high == NOTHING else f"{value} [{low}, {high}]"
