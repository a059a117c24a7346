"""The section of a report on how its methods compare over all settings."""

import math

import pandas as pd

from raysafl.core.text import count, first_of
from raysafl.report.analysis.evidence import CLEAR, LEVEL
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Block, Grid, Lines
from raysafl.report.pages.sections import setting_text
from raysafl.report.wording import NOTHING, as_markdown, number_or_dash, spread

# The title of the section.
OVER_SETTINGS = "Methods over all settings"
# Largest number of pairs of methods that are named.
PAIRS_NAMED = 12


def over_settings(numbers: Numbers) -> list[Block]:
    """Write how the methods compare over all settings, and what the learning rate matters."""
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
        row += [number_or_dash(least, unit) for least in pairs["least"].iloc[:1]]
        rows.append([*row, f"{own['diverged']} of {own['replicates']}"])
    head = [numbers.layout.method or "", "mean rank", "IQM"]
    head += [f"better than {other}" for other in over]
    head += [*(f"least difference to {base}" for base in over[:1]), worst]
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
        f"if all runs have several. {hint}*Least difference* is the "
        "smallest true difference within one setting that a paired t test of its seeds (or "
        "partitions) at 5 % would find in 80 % of studies. A diverged replicate is not left out: "
        f"it is worse than all others{never}."
    )
    p = methods.friedman["p"]
    friedman = "" if math.isnan(p) else f"Friedman's test of equal ranks: p = {p:.2g}. "
    clear = methods.pairs[methods.pairs["holm"] < CLEAR]
    told = [f"{r['method']} from {r['other']}" for _, r in clear.iterrows()]
    names = f": {as_markdown(first_of(told, PAIRS_NAMED))}" if told else ""
    few = "; with fewer than six settings it can tell none apart" if blocks < 6 else ""
    tests = (
        f"{friedman}Wilcoxon's signed-rank test over settings, with p adjusted by Holm, tells "
        f"{len(told)} of {count(len(methods.pairs), 'pair')} of methods apart{few}{names}."
    )
    lines = [
        f"{r['method']}, {r['axis']}: {r['best']:g} is the best of {r['rates']} rates "
        f"({spread(r['score'], r['error'], unit)}); those from {r['low']:g} to {r['high']:g} are "
        "within its standard error"
        for _, r in methods.rates.iterrows()
    ]
    return [text, Grid("Methods", head, rows), tests, Lines(lines) if lines else ""]


def _interval(own: "pd.Series[float]", unit: str, decimals: int | None = None) -> str:
    """Write a number with the ends of its interval, as `91.2 [90.8, 91.4]`."""
    value, low, high = (number_or_dash(end, unit, decimals) for end in own)
    return value if low == high == NOTHING else f"{value} [{low}, {high}]"
