"""The methods over all settings: critical differences of ranks, and performance profiles."""

from matplotlib.figure import Figure

from raysafl.report.figures.methods import looks_of, name_methods
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import (
    GREY,
    ON_SCREEN,
    Style,
    entitle,
    label_of_numbers,
    literal,
    style_axes,
)


def critical_difference(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw the mean rank of each method; bars join those that are not told apart.

    Each name has a line of its own, so that they do not overlap: the better half of them to
    the left of the scale, the others to its right. Source: docs/papers.md#demsar.
    """
    methods = study.numbers.methods
    if not methods.is_told:
        return []
    ranks = methods.ranks.mean()
    better = -(-len(ranks) // 2)
    bars = 0.5 * len(methods.groups) + 0.7
    lowest = better + bars - 0.5
    figure = style.figure(8.0, 0.7 + 0.2 * lowest)
    axes = figure.subplots()
    axes.set(xlim=(1, len(ranks)), ylim=(lowest, 0), yticks=[])
    axes.spines[["left", "right", "bottom"]].set_visible(False)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(f"mean rank over {len(methods.ranks)} settings")
    for i, (method, rank) in enumerate(ranks.items()):
        edge = 1 if i < better else len(ranks)
        height = bars + min(i, len(ranks) - 1 - i)
        axes.plot([rank, rank, edge], [0, height, height], color=GREY, clip_on=False)
        axes.annotate(
            literal(f"{method} ({rank:.2f})"),
            (edge, height),
            (-4 if i < better else 4, 0),
            textcoords="offset points",
            ha="right" if i < better else "left",
            va="center",
        )
    for i, group in enumerate(methods.groups):
        ends = [ranks[group[0]] - 0.05, ranks[group[-1]] + 0.05]
        axes.plot(ends, [0.5 * (i + 1)] * 2, color="black", linewidth=3)
    entitle(figure, "", [], style)
    return [figure]


def performance_profiles(study: Study, style: Style = ON_SCREEN) -> list[Figure]:
    """Draw which fraction of a method's scores is better than a value (docs/papers.md#rliable)."""
    methods = study.numbers.methods
    if not methods.is_told:
        return []
    table = methods.manifest.table
    figure = style.figure(8.0, 3.6)
    axes = figure.subplots()
    style_axes(axes)
    own = methods.profiles.pivot(index="tau", columns="method", values="fraction")
    for i, (label, look) in enumerate(looks_of(methods.layout).items()):
        name = study.numbers.layout.method_name(label)
        if name in own:
            (line,) = axes.plot(own.index, own[name], color=look.colour)
            line.set(linestyle=look.dash, marker=look.mark, markerfacecolor=look.face)
            line.set_label(literal(name))
            line.set(markevery=(i, 16), markersize=4)
    axes.set_xlabel(label_of_numbers(table))
    axes.set_ylabel("fraction of scores that are better")
    entitle(figure, "", [], style)
    name_methods(figure, methods.layout, style, is_line=True)
    return [figure]
