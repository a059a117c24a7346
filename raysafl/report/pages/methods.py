"""What a report says of methods: the answer, all settings together, and seed by seed."""

import math
from dataclasses import replace

import pandas as pd

from raysafl.core.text import count, first_of
from raysafl.report.analysis.evidence import CLEAR, LEVEL
from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.numbers import MOST, Numbers
from raysafl.report.pages.document import Block, Grid
from raysafl.report.wording import (
    NOTHING,
    as_markdown,
    decimals_of,
    number,
    signed_spread,
    winner_text,
)
from raysafl.storage.manifest import label_text

# Largest number of labels that are named.
NAMED = 4


def answer(numbers: Numbers) -> str:
    """Say what a sweep shows, as Markdown."""
    if numbers.methods.are_compared:
        texts = [_first_text(numbers), _differences_text(numbers)]
    elif numbers.best is None:
        texts = [_range_text(numbers)]
    else:
        texts = []
    if numbers.best is not None:
        texts.append(winner_text(numbers.best, numbers.manifest))
    return " ".join(filter(None, texts))


def _first_text(numbers: Numbers) -> str:
    """Name the methods with the best mean rank over all settings."""
    statistic = numbers.ranking.manifest.table.statistic
    ranks = numbers.ranking.ranks.mean()
    first = ranks.index[ranks == ranks.min()]
    names = " and ".join(f"**{as_markdown(method)}**" for method in first)
    verb = "has" if len(first) == 1 else "share"
    settings = len(numbers.ranking.ranks)
    what = (
        f"the best mean rank ({ranks.min():.1f}) over {count(settings, 'setting')} by"
    )
    data = ""
    if statistic != numbers.manifest.table.statistic:
        data = ", which is measured on the validation samples"
    return f"{names} {verb} {what if settings > 1 else 'the best'} `{statistic}`{data}."


def _differences_text(numbers: Numbers) -> str:
    """Say where the best method but the baseline differs from it, seed by seed."""
    layout = numbers.layout
    pairs = numbers.methods.seed_by_seed
    base = layout.method_name(layout.baseline)
    method = next(name for name in numbers.ranking.methods if name != base)
    names = pairs[f"label.{layout.method}"].map(layout.method_name)
    own = pairs[names == method]
    both = " and ".join(map(as_markdown, (method, base)))
    if own.empty:
        return f"Too few seeds are common to {both} to tell a difference from chance."
    clear = own[own["holm"] < CLEAR]
    seeds = " or ".join(f"{n:.0f}" for n in sorted(set(own["seeds"])))
    seeds = f"{seeds} {numbers.methods.pairs_of}"
    statistic = f"`{numbers.manifest.table.statistic}`"
    if clear.empty:
        gap = _gap_text(numbers, own["diff"].mean())
        return (
            f"In {statistic}, {seeds} show no significant difference between {both}, "
            f"which differ by {gap} on average."
        )
    sides: list[str] = []
    for sign, side in ((1, "higher"), (-1, "lower")):
        some = clear[sign * clear["diff"] > 0]
        if len(some):
            better = "better" if sign == numbers.manifest.sign else "worse"
            word = side if numbers.manifest.sign > 0 else f"{side} ({better})"
            than = f" than {as_markdown(base)}" if not sides else ""
            of = f" of {count(len(own), 'setting')}" if not sides else ""
            sides.append(f"{word}{than} {_extent_text(numbers, some, of, len(own))}")
    text = f"In {statistic}, {as_markdown(method)} is {', and '.join(sides)}."
    if rest := len(own) - len(clear):
        like = first_of(_alike(numbers, own), NAMED, " or ")
        among = f", among them all with {like}," if like else ""
        text += f" In the other {rest}{among} {seeds} show no significant difference."
    return text


def _extent_text(numbers: Numbers, some: pd.DataFrame, of: str, settings: int) -> str:
    """Say in how many settings a method differs, and by how much at most."""
    axes = numbers.layout.settings
    largest = some.iloc[int(some["diff"].abs().argmax())]
    gap = _gap_text(numbers, largest["diff"])
    if settings == 1:
        return f"by {gap}"
    labels = {axis: largest[f"label.{axis}"] for axis in axes}
    where = as_markdown(labels_text(labels, axes))
    return f"in {len(some)}{of}, by up to {gap} ({where})"


def _gap_text(numbers: Numbers, difference: float) -> str:
    """Write the size of a difference with its unit."""
    unit = numbers.manifest.table.unit
    shown = "points" if unit == "%" else unit
    return f"{number(abs(difference), unit)} {shown}".rstrip()


def _alike(numbers: Numbers, own: pd.DataFrame) -> list[str]:
    """Return the labels with which no setting shows a difference, such as `p = 10`."""
    is_clear = own["holm"] < CLEAR
    return [
        as_markdown(f"{axis} = {label_text(label)}")
        for axis in numbers.layout.settings
        for label in numbers.layout.values[axis]
        if len(some := is_clear[own[f"label.{axis}"] == label]) and not some.any()
    ]


def _range_text(numbers: Numbers) -> str:
    """Name the best and the worst mean where no methods are compared."""
    table = numbers.manifest.table
    means = numbers.entries[f"mean.{table.statistic}"].dropna()
    if means.empty:
        return "No run has finished yet."
    ordered = (numbers.manifest.sign * means).sort_values(
        ascending=False, kind="stable"
    )
    ends = [
        (
            f"{number(means[i], table.unit)} {table.unit}".rstrip(),
            labels_text(numbers.manifest.entries[i].labels, numbers.layout.varying),
        )
        for i in (ordered.index[0], ordered.index[-1])
    ]
    (best, where), (worst, elsewhere) = ends
    if not where or len(means) == 1:
        return f"The mean of `{table.statistic}` is {best}."
    return (
        f"The best mean of `{table.statistic}` is {best} ({as_markdown(where)}), and the worst "
        f"is {worst} ({as_markdown(elsewhere)})."
    )


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
        f"method with the second best mean rank by `{numbers.manifest.table.statistic}`. What "
        f"diverged has the worst score. Brackets hold {LEVEL:.0%} intervals, where there are "
        "enough seeds for one."
    )
    return [f"{text} {more}", replace(grid, head=head, rows=rows)]


def _with_interval(
    method: str, columns: pd.DataFrame, unit: str, decimals: int | None
) -> str:
    """Write a method's number with the ends of its interval, as `91.2 [90.8, 91.4]`."""
    (own,) = columns.reindex([method]).to_numpy(float)
    value, low, high = (number(end, unit, decimals) for end in own)
    return value if low == high == NOTHING else f"{value} [{low}, {high}]"


def standings(numbers: Numbers) -> list[Block]:
    """Say which method or entry is best, and how other methods stand."""
    if not numbers.methods.are_compared:
        return []
    unit = numbers.manifest.table.unit
    shown = numbers.manifest.table.statistic
    ranked_by = numbers.ranking.manifest.table.statistic
    ranks = numbers.ranking.ranks
    entries = numbers.entries.set_index("run_id")
    # No mean is one of the replicates alone that have a value, or of easy settings alone.
    is_part = entries[["without", "diverged"]].any(axis=1)
    means = entries[f"mean.{shown}"].mask(is_part)
    runs = numbers.ranking.rows.groupby("method")["run_id"].unique()
    rows = [
        [
            method,
            number(means[runs[method]].mean(skipna=False), unit),
            f"{ranks[method].mean():.1f}",
            f"{len(numbers.marks.best.intersection(runs[method]))} of {len(ranks)}",
        ]
        for method in numbers.ranking.methods
    ]
    data = (
        f"Means and ranks are of `{shown}`, so the mean of the first method is optimistic."
        if ranked_by == shown
        else f"The ranks are by `{ranked_by}`, on the validation samples. The means, the table "
        f"and its marks are by `{shown}`, on the test set, which had no part in the ranks."
    )
    text = (
        f"{setting_text(numbers)}*Best mean* counts the settings in which a method has the best "
        f"mean of `{shown}`. {data}"
    )
    head = [numbers.layout.method or "", "mean", "mean rank", "best mean"]
    return [text, Grid("How methods stand", head, rows)]


def setting_text(numbers: Numbers) -> str:
    """Say over which labels settings range."""
    axes = numbers.layout.settings
    if not axes:
        return ""
    names = " and ".join(filter(None, [", ".join(axes[:-1]), axes[-1]]))
    return f"A setting is a choice of {as_markdown(names)}. "


def methods(numbers: Numbers) -> list[Block]:
    """Write the paired comparisons of every method with the baseline."""
    manifest = numbers.manifest
    method = numbers.layout.method
    pairs = numbers.methods.seed_by_seed
    if pairs.empty or method is None:
        return []
    axes = [*(axis for axis in numbers.layout.axes if axis != method), method]
    order = numbers.layout.values
    places = pairs[[f"label.{axis}" for axis in axes]].apply(
        lambda column: column.map(order[column.name.removeprefix("label.")].index)
    )
    pairs = pairs.loc[places.sort_values([*places], kind="stable").index]
    decimals = decimals_of(pairs["diff"])
    unit = manifest.table.unit
    rows = []
    for _, pair in pairs.iloc[:MOST].iterrows():
        verdict = "higher" if pair["diff"] > 0 else "lower"
        p = [pair["p"], pair["holm"]]
        rows.append(
            [
                *(label_text(pair[f"label.{axis}"]) for axis in axes),
                f"{pair['seeds']:.0f}",
                signed_spread(pair["diff"], pair["half"], unit, decimals),
                *map(_p_text, p),
                verdict if pair["holm"] < CLEAR else "",
            ]
        )
    base = as_markdown(numbers.layout.method_name(pairs["baseline"].iloc[0]))
    where = ""
    if len(rows) < len(pairs):
        where = f", of which {len(rows):,} are shown here"
    text = (
        f"Each method minus {base} in `{manifest.table.statistic}`. Runs with the same seed "
        f"have the same cohorts, so their differences are tested (those of the means over each "
        f"partition, where there are several partitions): paired t test, two-sided, with "
        f"the mean difference's {LEVEL:.0%} interval. *p (Holm)* is adjusted for "
        f"{count(pairs['p'].count(), 'comparison')} with a p{where}; below {CLEAR:g} the method is "
        "called higher or lower. With few seeds and many comparisons few are: an empty verdict is "
        "no evidence that methods are equal."
    )
    units = numbers.methods.pairs_of
    head = [*axes, units, f"Δ ± {LEVEL:.0%}", "p", "p (Holm)", "verdict"]
    return [text, Grid("Paired comparisons", head, rows, len(axes))]


def _p_text(p: float) -> str:
    """Write a p-value with three decimals."""
    if math.isnan(p):
        return NOTHING
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
