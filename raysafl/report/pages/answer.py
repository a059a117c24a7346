"""The answer of a report in words: which method or run is best, and by how much."""

import pandas as pd

from raysafl.core.text import count, first_of
from raysafl.report.analysis.evidence import CLEAR
from raysafl.report.analysis.layout import labels_text
from raysafl.report.analysis.numbers import Numbers, compares_methods
from raysafl.report.wording import as_markdown, number, winner_text
from raysafl.storage.manifest import label_text

# Largest number of labels that are named.
NAMED = 4


def answer(numbers: Numbers) -> str:
    """Say what a sweep shows, as Markdown."""
    if compares_methods(numbers.methods):
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
    if pairs.empty:
        return "With one seed each, a difference between methods may be due to chance."
    names = pairs[f"label.{layout.method}"].map(layout.method_name)
    own = pairs[names == method]
    clear = own[own["holm"] < CLEAR]
    seeds = " or ".join(str(n) for n in sorted(set(own["seeds"])))
    statistic = f"`{numbers.manifest.table.statistic}`"
    if clear.empty:
        both = " and ".join(map(as_markdown, (method, base)))
        gap = _gap_text(numbers, own["diff"].mean())
        return (
            f"In {statistic}, {seeds} seeds show no significant difference between {both}, "
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
        like = _alike(numbers, own)
        among = f", among them all with {first_of(like, NAMED)}," if like else ""
        text += (
            f" In the other {rest}{among} {seeds} seeds show no significant difference."
        )
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
