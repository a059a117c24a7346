"""Show what the slips in the code of FAST's authors change.

    python -m experiments.fast.slips [--out DIR]

Run it from the repository's root. It pairs runs in results/measured that differ in one slip
alone: one run is what the code does, the other what the paper prints. They are of the
readings of `experiments.fast.setting`, on our own deal with alpha = 0.1, and have the same
seed.

At scale `window` one run stands for an entry, so a change is held against
chance as in `experiments.fast.authors_curves`: two runs of one law are told apart if they
differ by more than 2 sqrt(2) deviations of one run. At scale `small` the changes of all
entries are averaged; an entry's accuracy is there the mean of its last five tests over
two seeds.

The halved learning rate of CIFAR-10 begins in round 5,000, which no run of ours reaches. So
the authors' own curves are asked whether anything happens to them there.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import t

from experiments.fast import authors_curves as published
from experiments.fast.against_authors import WINDOWS
from experiments.fast.authors_curves import (
    ENTRY,
    Q_OF_TABLES,
    SAME_LAW,
    as_text,
    window_means,
)
from experiments.fast.setting import DISTRIBUTIONS, entry_run, small, window
from experiments.tools.measured import sweeps

DATASET = "Fashion-MNIST"
ALPHA = 0.1
QS = (0, *(q if q.startswith("Ada") else float(q) for q in Q_OF_TABLES))
# Rounds before and after which curves are compared.
BORDERS = (4000, 4500, 5000, 5500, 6000)
SPAN = 500  # rounds on each side of a border; borders lie so far apart
LAST = 5  # number of tests whose mean is an entry's accuracy at scale `small`


class Slip(NamedTuple):
    """What the paper prints and the code does otherwise, and the runs that show it."""

    text: str  # what is so as printed, and not in the code
    method: str  # of the runs as printed
    participations: tuple[str, ...]
    # The readings of FedAvg by the code, and of the method as printed.
    readings: tuple[str, str]


class Pair(NamedTuple):
    """The rows of two runs that differ in one slip."""

    slip: Slip
    participation: str
    q: object
    code: pd.DataFrame  # as the code has it
    printed: pd.DataFrame


PARTICIPATIONS = ("Uniform", *DISTRIBUTIONS)
SLIPS = (
    Slip(
        "clients have equally many samples",
        *("FedAvg", PARTICIPATIONS, ("unequal", "printed")),
    ),
    Slip(
        "Weibull is not divided by 1.2",
        *("FedAvg", ("Weibull",), ("authors", "unequal")),
    ),
    Slip("FedProx has its term", "FedProx", PARTICIPATIONS, ("unequal", "unequal")),
    Slip(
        "FedAvgM keeps its momentum",
        *("FedAvgM", PARTICIPATIONS, ("unequal", "unequal")),
    ),
)


def measured_rows():
    """Return the rows of each run of FAST's in results/measured that ended, by its id."""
    rows = {}
    for folder, sweep in sweeps().items():
        if folder.startswith("fast_"):
            ended = sweep.store.rounds([entry.run_id for entry in sweep.ended])
            rows.update((run_id, own) for run_id, own in ended.groupby("run_id"))
    return rows


def pairs(scale, rows):
    """Return the pairs of runs that were measured at a scale.

    Args:
        scale: The function that makes it of a run of scale `paper`.
        rows: The `measured_rows`.
    """
    found = []
    for slip in SLIPS:
        for name in slip.participations:
            for q in (1,) if name == "Uniform" else QS:
                code, printed = (run.id for run in runs_of(slip, name, q, scale))
                if code in rows and printed in rows:
                    found.append(Pair(slip, name, q, rows[code], rows[printed]))
    return found


def runs_of(slip, participation, q, scale):
    """Return an entry's two runs that differ in a slip alone: by the code, and as printed.

    Args:
        slip: The slip.
        participation: "Uniform", or the name of a distribution.
        q: The probability of a snapshot, or "Ada.(lambda)".
        scale: The function that makes a run of a scale of one of scale `paper`.
    """
    of_code, of_paper = slip.readings
    entry = (DATASET, participation, q, ALPHA)
    code = entry_run(*entry, "FedAvg", of_code)
    printed = entry_run(*entry, slip.method, of_paper)
    return scale(code), scale(printed)


def changes_by_window(found, theirs, deviation):
    """Return what each slip changes in each window, one row a pair and window.

    A run that was stopped early has no row for a window that it did not complete.

    Args:
        found: The `pairs` at scale `window`.
        theirs: The authors' means by window, as `window_means` has them.
        deviation: The deviation of one run by alpha, one column a window.
    """
    rows = []
    for pair in found:
        code = _window_means(pair.code)
        printed = _window_means(pair.printed)
        rounds = min(own["round"].max() + 1 for own in (pair.code, pair.printed))
        for span in WINDOWS[:2]:
            if rounds < span[1]:
                continue
            entry = (ALPHA, pair.participation, str(pair.q))
            of_law = [theirs.loc[(*entry, method), span] for method in SAME_LAW]
            chance = 2 * np.sqrt(2) * deviation[span][ALPHA]
            rows.append(
                {
                    "as printed": pair.slip.text,
                    "participation": pair.participation,
                    "q": str(pair.q),
                    "rounds": f"{span[0]} to {span[1]}",
                    "authors": ", ".join(f"{value:.1f}" for value in of_law),
                    "ours by the code": f"{code[span]:.1f}",
                    "ours as printed": f"{printed[span]:.1f}",
                    "change": f"{printed[span] - code[span]:+.1f}",
                    "chance": f"± {chance:.1f}",
                }
            )
    return pd.DataFrame(rows)


def mean_changes(found):
    """Return the mean change of each slip over entries, with its 95 % interval.

    Args:
        found: The `pairs` of scale `small`.
    """
    rows = []
    for slip in SLIPS:
        changes = pd.Series(
            [_last(own.printed) - _last(own.code) for own in found if own.slip == slip]
        )
        if len(changes) < 2:
            continue
        rows.append(
            {
                "as printed": slip.text,
                "entries": len(changes),
                "mean change": _interval(changes, 1),
                "least": f"{changes.min():+.1f}",
                "largest": f"{changes.max():+.1f}",
            }
        )
    return pd.DataFrame(rows)


def around_borders(curves):
    """Return what happens to the authors' curves at some rounds, one row for each.

    Where a learning rate is halved, accuracy should rise faster, and tests should differ
    less from one to the next. "Rise" is the mean accuracy of the `SPAN` rounds that follow
    minus that of those before, and "steps" is the change of the standard deviation of
    differences between neighbouring tests, both in points. "Against neighbours" is by how
    much this exceeds the mean of what happens at the borders before and after, with its 95 %
    interval over curves.

    Args:
        curves: What `authors_curves.authors_curves` returns for CIFAR-10.
    """
    by = [*ENTRY, "method"]
    wide = 100 * curves.pivot_table(index="step", columns=by, values="value")
    starts = range(BORDERS[0] - 2 * SPAN, BORDERS[-1] + 2 * SPAN, SPAN)
    parts = {start: wide.loc[start : start + SPAN - 1] for start in starts}
    rise = pd.DataFrame({at: own.mean() for at, own in parts.items()}).diff(axis=1)
    steps = pd.DataFrame({at: own.diff().std() for at, own in parts.items()})
    columns = {"rise": rise, "steps": steps.diff(axis=1)}
    rows = []
    for border in BORDERS:
        row = {"round": border, "curves": rise[border].count()}
        for name, change in columns.items():
            beside = (change[border - SPAN] + change[border + SPAN]) / 2
            row[name] = f"{change[border].mean():+.2f}"
            row[f"{name} against neighbours"] = _interval(change[border] - beside, 2)
        rows.append(row)
    return pd.DataFrame(rows)


def _interval(values, digits):
    """Return the mean of values with its 95 % interval, as text."""
    known = values.dropna()
    half = t.ppf(0.975, len(known) - 1) * known.sem()
    return f"{known.mean():+.{digits}f} ± {half:.{digits}f}"


def _window_means(rows):
    """Return a run's mean accuracy in each window, in per cent."""
    # The steps are the authors': see `against_authors.our_curves`.
    curve = rows.assign(step=rows["round"] + 1, value=rows["test_accuracy"])
    return window_means(curve, "run_id", WINDOWS).iloc[0]


def _last(rows):
    """Return the mean of the last tests of all seeds, in per cent."""
    tested = rows.dropna(subset="test_accuracy").sort_values("round")
    return 100 * tested.groupby("replicate")["test_accuracy"].tail(LAST).mean()


def draw(found, curves, path):
    """Draw each pair of runs over the authors' two curves of its law.

    Args:
        found: The `pairs` of 600 rounds.
        curves: What `authors_curves.authors_curves` returns.
        path: The file to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(found), 3.2), layout="constrained")
    panels = figure.subplots(1, len(found), squeeze=False, sharey=True)[0]
    for pair, panel in zip(found, panels, strict=True):
        entry = [ALPHA, pair.participation, str(pair.q)]
        theirs = curves[(curves[ENTRY] == entry).all(axis=1)]
        for method in SAME_LAW:
            own = theirs[theirs["method"] == method]
            label = f"authors, {published.METHODS[method]}"
            panel.plot(own["step"], 100 * own["value"], lw=0.8, label=label)
        for rows, color, label in (
            (pair.code, "black", "ours by the code"),
            (pair.printed, "tab:red", "ours as printed"),
        ):
            tested = rows.dropna(subset="test_accuracy")
            accuracy = 100 * tested["test_accuracy"]
            panel.plot(tested["round"], accuracy, lw=1.2, color=color, label=label)
        panel.set(
            title=f"{pair.slip.text}\n{pair.participation}, q = {pair.q}",
            xlim=(0, pair.printed["round"].max()),
            ylim=(10, 95),
        )
        panel.legend(fontsize=6, loc="lower right")
    figure.supxlabel("round")
    figure.supylabel("test accuracy, %")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    """Print the tables and, if a folder is named, draw the curves there."""
    parser = argparse.ArgumentParser(description="What FAST's slips change")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    curves = published.authors_curves()
    theirs = window_means(curves, [*ENTRY, "method"], WINDOWS)
    deviation, _ = published.deviations(theirs)
    rows = measured_rows()
    found = pairs(window, rows)
    for table in (
        changes_by_window(found, theirs, deviation),
        mean_changes(pairs(small, rows)),
        around_borders(published.authors_curves("cifar10")),
    ):
        print(f"{as_text(table)}\n")
    if options.out and found:
        options.out.mkdir(parents=True, exist_ok=True)
        draw(found, curves, options.out / "fast_slips.png")


if __name__ == "__main__":
    main()
