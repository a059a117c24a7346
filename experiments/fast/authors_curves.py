"""What the curves that FAST's authors have published say by themselves.

    python -m experiments.fast.authors_curves [--out DIR]

Run it from the repository's root. The folder `RAYSAFL_DATA` must hold the authors' curves
as `fast_authors/curves.parquet` (505 files of github.com/RogerRogerUSC/FAST as one table).
A cell of FAST's tables 3, 6 and 7 is the end of one of these curves, so it is one run.

**The judge is how much two runs of one law differ.** In the authors' code FedAvgM is
FedAvg, so their curves of both are pairs of such runs. With the differences d of a pair's
mean accuracies over a window of rounds, the deviation of one run is the root mean square
of d over all pairs, divided by sqrt(2). The mean of d is not taken off: two runs of one law
differ by nothing in the mean, so what all pairs share is a part of how runs differ.

Two runs are told apart if they differ by more than 2 sqrt(2) deviations. Means of several
runs have smaller deviations: what is compared says how many runs it is made of. Of many
comparisons some are larger than this by chance, so they are also judged together by Holm's
procedure, with Student's t of as many degrees of freedom as there are pairs.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t

from experiments.fast.setting import DISTRIBUTIONS
from raysafl.data import data_root
from raysafl.report.analysis.evidence import holm
from raysafl.report.pages.document import Strong, pipe_table
from raysafl.report.wording import NOTHING

# For each dataset the windows of rounds whose mean accuracies are compared: the middle of
# training, and its end, of which the tables print the last five tests.
WINDOWS = {
    "fashion": ((100, 300), (300, 600), (900, 999)),
    "cifar10": ((1000, 3000), (3000, 6000), (9000, 9999)),
    "shakespeare": ((500, 1500), (1500, 3000), (4500, 5000)),
}
NAMES = {
    "fashion": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "shakespeare": "Shakespeare",
}
CLIENTS = {"fashion": 100, "cifar10": 100, "shakespeare": 139}
METHODS = {"fedavg": "FedAvg", "fedavgm": "FedAvgM", "fedprox": "FedProx"}
SAME_LAW = ["fedavg", "fedavgm"]
ENTRY = ["alpha", "participation", "q"]
# The kinds of comparisons that are counted.
MEAN_GAIN = "mean gain of q > 0"
GAIN = "one q of tables 3, 6 and 7 against q = 0"
FEDPROX = "FedProx against FedAvg"
# The values of q above 0 that tables 3, 6 and 7 print; tables 5 and 8 have further ones.
Q_OF_TABLES = ("0.1", "0.2", "0.3", "0.4", "0.5", "Ada.(1)", "Ada.(7)")


def authors_curves(data="fashion"):
    """Return the authors' accuracies on a dataset: one row a test, with its entry.

    Of several files of one entry and method, the first counts. Files of uniform
    participation lie in several folders, which hold copies, and adaptive FAST has
    further runs under another name. Nine files hold several runs, one after the other.
    Of these the last one counts, which the tables print.

    Args:
        data: A key of `NAMES`.
    """
    frame = pd.read_parquet(data_root() / "fast_authors" / "curves.parquet")
    frame = frame[(frame["kind"] == "accuracy") & (frame["data"] == data)].copy()
    frame = frame[frame["clients"].isna() | (frame["clients"] == CLIENTS[data])]
    # The files of Shakespeare's FedAvg do not name it; text has no Dirichlet partition.
    frame["alpha"] = frame["alpha"].fillna(0.1)
    sampling = frame["sampling"]
    frame["participation"] = sampling.str.split("_").str[-1].str.capitalize()
    adaptive = frame["q"].str.contains("def|Adaptive", na=False)
    frame["q"] = frame["q"].mask(adaptive, "Ada.(1)")
    frame.loc[sampling.isin([n.lower() for n in DISTRIBUTIONS]), "q"] = "0"
    frame.loc[sampling == "uniform", "q"] = "1"
    frame = frame[frame["participation"].isin([*DISTRIBUTIONS, "Uniform"])]
    first = frame.groupby([*ENTRY, "method"])["file"].transform("first")
    frame = frame[frame["file"] == first]
    return frame.drop_duplicates([*ENTRY, "method", "step"], keep="last")


def window_means(curves, by, windows=WINDOWS["fashion"]):
    """Return the mean accuracy in per cent by entry, one column a window.

    Args:
        curves: The columns `step` and `value`, and those of `by`.
        by: What tells curves apart.
        windows: First and last round of each window.
    """
    means = {
        window: 100
        * curves[curves["step"].between(*window)].groupby(by)["value"].mean()
        for window in windows
    }
    return pd.DataFrame(means)


def deviations(theirs):
    """Return the deviation of one run, by alpha, one column a window; and the pairs.

    Args:
        theirs: The `window_means` of the authors' curves by entry and method.
    """
    differences = _of_method(theirs, "fedavgm") - _of_method(theirs, "fedavg")
    differences = differences.dropna(how="all")
    squares = (differences**2).groupby("alpha")
    return np.sqrt(squares.mean() / 2), squares.count()


def comparisons(theirs, deviation):
    """Return what FAST's values of q gain over q = 0, and which q are told apart.

    There is a row for each method, alpha and distribution that has several values of q
    in the last window. "Mean gain" is over all values of q above 0, which share one run
    with q = 0.
    """
    window = theirs.columns[-1]
    rows = []
    for (method, alpha, law), by_q in _rows_of_q(theirs, deviation):
        gains = by_q.drop("0") - by_q["0"]
        one = deviation[window][alpha]
        half = 2 * one * np.sqrt(1 + 1 / len(gains))
        apart = 2 * np.sqrt(2) * one
        best = by_q.idxmax()
        beyond = gains[gains > apart].index
        near = by_q.index[(by_q[best] - by_q < apart) & (by_q.index != best)]
        rows.append(
            {
                "method": METHODS[method],
                "alpha": alpha,
                "participation": law,
                "q = 0": f"{by_q['0']:.1f}",
                "mean gain of q > 0": f"{gains.mean():+.1f} ± {half:.1f}",
                "gains beyond chance": f"{len(beyond)} of {len(gains)}",
                "best q": f"{best} ({by_q[best]:.1f})",
                "not told apart from it": f"{len(near)} of {len(by_q) - 1}",
            }
        )
    return pd.DataFrame(rows)


def _rows_of_q(theirs, deviation):
    """Yield (method, alpha, distribution), and the accuracies by q in the last window.

    Rows without a run of q = 0 or with fewer than three values of q are left out.
    """
    window = theirs.columns[-1]
    for method in METHODS:
        means = _of_method(theirs, method)[window].dropna()
        means = means[means.index.get_level_values("participation") != "Uniform"]
        for (alpha, law), own in means.groupby(["alpha", "participation"]):
            by_q = own.droplevel(["alpha", "participation"])
            if alpha in deviation.index and len(by_q) >= 3 and "0" in by_q:
                yield (method, alpha, law), by_q


def gains_by_entry(theirs, deviation):
    """Return what each value of q of tables 3, 6 and 7 gains over q = 0, in points.

    There is a row for each method, alpha and distribution. "Chance" is two deviations of
    the difference of two runs: larger gains are bold, and two values of q are told apart if
    their gains differ by more.
    """
    window = theirs.columns[-1]
    rows = []
    for (method, alpha, law), by_q in _rows_of_q(theirs, deviation):
        apart = 2 * np.sqrt(2) * deviation[window][alpha]
        row = {"method": METHODS[method], "alpha": alpha, "participation": law}
        for q in Q_OF_TABLES:
            row[f"q = {q}"] = _marked(by_q.get(q, np.nan) - by_q["0"], apart)
        rows.append(row | {"chance": f"± {apart:.1f}"})
    return pd.DataFrame(rows, dtype=object)


def fedprox_by_entry(theirs, deviation):
    """Return FedProx minus the mean of its law's two FedAvg runs, entry by entry, in points.

    "Chance" is two deviations of such a difference; larger ones are bold.
    """
    window = theirs.columns[-1]
    differences = _fedprox_differences(theirs).unstack("q")
    rows = []
    for (alpha, name), own in differences.dropna(how="all").iterrows():
        if alpha not in deviation.index:
            continue
        apart = 2 * np.sqrt(1.5) * deviation[window][alpha]
        row = {"alpha": alpha, "participation": name}
        for q in ("0", *Q_OF_TABLES, "1"):
            row[f"q = {q}"] = _marked(own.get(q, np.nan), apart)
        rows.append(row | {"chance": f"± {apart:.1f}"})
    return pd.DataFrame(rows, dtype=object)


def _fedprox_differences(theirs):
    """Return FedProx minus the mean of its law's two FedAvg runs, in the last window."""
    differences = _of_method(theirs, "fedprox") - _mean_of_law(theirs)
    return differences[theirs.columns[-1]].dropna()


def counts_beyond_chance(means, found):
    """Return how many comparisons of each kind are beyond chance, alone and together.

    "Alone" means more than two deviations, as in the other tables; by chance this is
    one in twenty. "Together" means that Holm's procedure, over all comparisons of the kind
    and all datasets, rejects at 5 % that there is no difference.

    Args:
        means: For each dataset the `window_means`.
        found: For each dataset the `deviations`.
    """
    parts = []
    for data, theirs in means.items():
        deviation, pairs = (frame[theirs.columns[-1]] for frame in found[data])
        for (_, alpha, _), by_q in _rows_of_q(theirs, found[data][0]):
            gains = by_q.drop("0") - by_q["0"]
            one = deviation[alpha] * np.sqrt(1 + 1 / len(gains))
            parts.append((MEAN_GAIN, data, gains.mean() / one, pairs[alpha]))
            of_tables = gains.reindex(Q_OF_TABLES).dropna()
            ratios = of_tables / (deviation[alpha] * np.sqrt(2))
            parts += [(GAIN, data, ratio, pairs[alpha]) for ratio in ratios]
        for (alpha, *_), difference in _fedprox_differences(theirs).items():
            if alpha in deviation.index:
                ratio = difference / (deviation[alpha] * np.sqrt(1.5))
                parts.append((FEDPROX, data, ratio, pairs[alpha]))
    frame = pd.DataFrame(parts, columns=["comparison", "data", "ratio", "pairs"])
    p_values = pd.Series(2 * t.sf(frame["ratio"].abs(), frame["pairs"]))
    kinds = frame["comparison"]
    frame["together"] = p_values.groupby(kinds).transform(lambda p: holm(p.to_numpy()))
    return pd.DataFrame(
        {
            "comparison": comparison,
            "data": NAMES[data],
            "compared": len(own),
            "beyond chance alone": (own["ratio"].abs() > 2).sum(),
            "together (Holm)": (own["together"] < 0.05).sum(),
        }
        for comparison in (MEAN_GAIN, GAIN, FEDPROX)
        for data, own in frame[kinds == comparison].groupby("data", sort=False)
    )


def _marked(difference, apart):
    if np.isnan(difference):
        return NOTHING
    text = f"{difference:+.1f}"
    return Strong(text) if abs(difference) > apart else text


def against_fedavg(theirs, deviation):
    """Return FedProx minus FedAvg, and FedAvgM minus FedAvg, over entries of all of them.

    The interval is that of the mean of the differences over entries (Student's t). For
    FedProx FedAvg is the mean of the two runs of its law.
    """
    rows = []
    for method, reference, of in (
        ("fedprox", _mean_of_law(theirs), 1.5),
        ("fedavgm", _of_method(theirs, "fedavg"), 2.0),
    ):
        differences = (_of_method(theirs, method) - reference).dropna(how="all")
        for alpha, own in differences.groupby("alpha"):
            for window in own if alpha in deviation.index else ():
                d = own[window].dropna()
                if len(d) < 3:
                    continue
                half = t.ppf(0.975, len(d) - 1) * d.std() / np.sqrt(len(d))
                apart = 2 * np.sqrt(of) * deviation[window][alpha]
                rows.append(
                    {
                        "comparison": f"{METHODS[method]} - FedAvg",
                        "alpha": alpha,
                        "rounds": f"{window[0]} to {window[1]}",
                        "entries": len(d),
                        "mean difference": f"{d.mean():+.1f} ± {half:.1f}",
                        "single entries beyond chance": int((d.abs() > apart).sum()),
                    }
                )
    return pd.DataFrame(rows)


def spread_table(found):
    """Return the deviation of one run for each dataset, alpha and window.

    Args:
        found: For each dataset the deviations and the pairs.
    """
    rows = []
    for data, (deviation, pairs) in found.items():
        for alpha, of_alpha in deviation.dropna().iterrows():
            rows += [
                {
                    "data": NAMES[data],
                    "alpha": alpha,
                    "rounds": f"{window[0]} to {window[1]}",
                    "pairs": pairs[window][alpha],
                    "deviation of one run": f"{value:.2f}",
                }
                for window, value in of_alpha.items()
                if pairs[window][alpha] > 2
            ]
    return pd.DataFrame(rows)


def draw(curves, path):
    """Draw the difference of each pair of runs of one law, one panel a dataset and alpha.

    Args:
        curves: For each dataset the authors' curves.
        path: The file to write.
    """
    from matplotlib.figure import Figure

    panels = []
    for data, frame in curves.items():
        wide = frame.pivot_table(
            index=["step"], columns=[*ENTRY, "method"], values="value"
        )
        both = 100 * (
            wide.xs("fedavgm", axis=1, level="method")
            - wide.xs("fedavg", axis=1, level="method")
        )
        for alpha, own in both.T.groupby("alpha"):
            pairs = own.T.dropna(axis=1, how="all")
            if pairs.shape[1] > 2:
                panels.append((f"{NAMES[data]}, alpha = {alpha}", pairs))
    figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for (title, pairs), panel in zip(panels, axes, strict=True):
        smooth = pairs.rolling(9, min_periods=1, center=True).mean()
        panel.plot(smooth.index, smooth, lw=0.6, color="tab:blue", alpha=0.6)
        spread = np.sqrt((smooth**2).mean(axis=1))
        for sign in (-2, 2):
            panel.plot(smooth.index, sign * spread, lw=1.4, color="black")
        panel.axhline(0, lw=0.8, color="grey")
        panel.set(title=f"{title}: {pairs.shape[1]} pairs", ylim=(-20, 20))
        panel.set_xlabel("round")
    axes[0].set_ylabel("FedAvgM minus FedAvg,\npoints (mean of nine tests)")
    figure.savefig(path, dpi=75)


def as_text(frame):
    """Return a table as Markdown."""
    rows = [
        [cell if isinstance(cell, str) else str(cell) for cell in row]
        for row in frame.itertuples(index=False, name=None)
    ]
    return pipe_table([*map(str, frame)], rows, 3)


def _mean_of_law(theirs):
    """Return the means of the two runs of each entry that are FedAvg."""
    return (_of_method(theirs, "fedavg") + _of_method(theirs, "fedavgm")) / 2


def _of_method(theirs, method):
    return theirs.xs(method, level="method")


def main(arguments=None):
    """Print the tables and, if a folder is named, write them and the figure there."""
    parser = argparse.ArgumentParser(description="FAST's published curves")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    curves = {data: authors_curves(data) for data in NAMES}
    means = {
        data: window_means(frame, [*ENTRY, "method"], WINDOWS[data])
        for data, frame in curves.items()
    }
    found = {data: deviations(theirs) for data, theirs in means.items()}
    parts = [as_text(spread_table(found)), as_text(counts_beyond_chance(means, found))]
    for title, compare in (
        ("Values of q, in the last window", comparisons),
        ("Each value of q against q = 0", gains_by_entry),
        ("Algorithms", against_fedavg),
        ("FedProx against FedAvg, entry by entry", fedprox_by_entry),
    ):
        for data, theirs in means.items():
            table = compare(theirs, found[data][0])
            parts.append(f"{title}: {NAMES[data]}\n\n{as_text(table)}")
    text = "\n\n".join(parts)
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "authors_curves.md").write_text(text + "\n")
        draw(curves, options.out / "authors_curves.png")


if __name__ == "__main__":
    main()
