"""Hold our curves against those that FAST's authors have published.

    python -m experiments.fast.against_authors FOLDER [--data cifar10] [--out DIR]

Run it from the repository's root. FOLDER holds the results of
`experiments/fast/curves_fashion_mnist.py`, `curves_cifar10.py`, or table 3, 6 or 7, and
`--data` names their dataset (`fashion` if it is left out). Runs that have not ended are
left out.

`experiments.fast.authors_curves` says what the authors' curves are, and how much one run
deviates from the mean of its law, sigma. That is the judge: an entry lies inside if the
mean over our n deals is at most 2 sigma sqrt(1/n + 1/k) away from the mean of the authors'
k runs of that law, which are their FedAvg and FedAvgM (k = 2). For two deals that is
2 sigma.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.fast import authors_curves as published
from experiments.fast.authors_curves import ENTRY, SAME_LAW, as_text, window_means
from raysafl.data import data_root
from raysafl.storage.store import Store

# First and last round of the windows whose mean accuracies are compared.
WINDOWS = published.WINDOWS["fashion"]


def our_curves(folder):
    """Return our accuracies in the reading `authors`, with entry and deal."""
    store = Store(folder)
    manifest = store.manifest()
    if "q" not in manifest.axes:
        raise SystemExit(
            f"{manifest.name} has no axis q; give curves, or table 3, 6 or 7"
        )
    ended = store.ledger().keys()
    parts = []
    for entry in manifest.entries:
        if entry.labels["reading"] == "authors" and ended >= set(entry.cells):
            labels = {**entry.labels, "q": str(entry.labels["q"])}
            # The curves' entries have one alpha; text has none, as in the authors' curves.
            if labels.get("alpha", "natural") == "natural":
                labels["alpha"] = 0.1
            parts.append(store.rounds(entry.run_id).assign(**labels))
    if not parts:
        raise SystemExit(f"no run of the reading `authors` has ended in {folder}")
    joined = pd.concat(parts, ignore_index=True)
    # We test after 10, 20, ... rounds and the authors after 1, 11, 21, ..., their steps 0,
    # 10, 20, ... So both have equally many tests in a window.
    return joined.assign(value=joined["test_accuracy"], step=joined["round"] + 1)


def window_verdicts(folder, data):
    """Return the table of `compared` for the results in a folder.

    Args:
        folder: The folder of a sweep.
        data: A key of `authors_curves.NAMES`.
    """
    theirs, deviation = _theirs(published.authors_curves(data))
    return compared(our_curves(folder), theirs, deviation)


def _theirs(curves):
    """Return the authors' means by window, and the deviation of one run."""
    theirs = window_means(curves, [*ENTRY, "method"], WINDOWS)
    deviation, _ = published.deviations(theirs)
    return theirs, deviation


def compared(ours, theirs, deviation):
    """Return the table of our entries against the authors', one row an entry and window."""
    mine = window_means(ours, [*ENTRY, "deal"])
    rows = []
    for window in WINDOWS:
        for entry, deals in mine[window].dropna().groupby(ENTRY):
            same_law = [m for m in SAME_LAW if (*entry, m) in theirs.index]
            if not same_law or np.isnan(deviation[window].get(entry[0], np.nan)):
                continue
            printed = np.array([theirs.loc[(*entry, m), window] for m in same_law])
            distance = deals.mean() - printed.mean()
            both = np.sqrt(1 / len(deals) + 1 / len(printed))
            limit = 2 * deviation[window][entry[0]] * both
            rows.append(
                {
                    "alpha": entry[0],
                    "participation": entry[1],
                    "q": entry[2],
                    "rounds": f"{window[0]} to {window[1]}",
                    "authors": ", ".join(f"{value:.1f}" for value in printed),
                    "ours, by deal": ", ".join(f"{value:.1f}" for value in deals),
                    "distance": distance,
                    "allowed": f"{limit:.1f}",
                    "verdict": "inside" if abs(distance) <= limit else "outside",
                }
            )
    return pd.DataFrame(rows)


def compared_probabilities(ours, data):
    """Return our share of snapshots in adaptive FAST against the authors' mean q.

    q is the probability that a round is a snapshot. Our rows have q of every tenth round
    only, but count the snapshots of all. The authors have published q of all rounds, for
    Fashion-MNIST only.
    """
    frame = pd.read_parquet(data_root() / "fast_authors" / "curves.parquet")
    frame = frame[(frame["kind"] == "q") & (frame["data"] == data)]
    adaptive = ours[ours["q"].str.startswith("Ada.")]
    rows = []
    for (alpha, name, q), curve in adaptive.groupby(ENTRY):
        strength = float(q.removeprefix("Ada.(").removesuffix(")"))
        same = (frame["alpha"] == alpha) & (frame["sampling"] == name.lower())
        same &= (frame["lam"] == strength) & (frame["step"] <= curve["step"].max())
        if not same.any():
            continue
        rounds = curve.groupby("run_id")["step"].max().sum()
        rows.append(
            {
                "alpha": alpha,
                "participation": name,
                "q": q,
                "authors' mean q": f"{frame[same]['value'].mean():.3f}",
                "our share of snapshots": f"{curve['snapshots'].sum() / rounds:.3f}",
            }
        )
    return pd.DataFrame(rows)


def draw(ours, curves, deviation, path):
    """Draw our curves over the authors', one panel an entry, with the windows' bands.

    A band is two deviations of one run wide on both sides of the authors' mean.
    """
    from matplotlib.figure import Figure

    entries = list(ours.groupby(ENTRY).groups)
    columns = min(4, len(entries))
    rows = -(-len(entries) // columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for entry, panel in zip(entries, panels, strict=False):
        is_ours = (ours[ENTRY] == list(entry)).all(axis=1)
        is_theirs = (curves[ENTRY] == list(entry)).all(axis=1)
        same_law = curves[is_theirs & curves["method"].isin(SAME_LAW)]
        for method, curve in same_law.groupby("method"):
            label = f"authors, {published.METHODS[method]}"
            panel.plot(curve["step"], 100 * curve["value"], lw=0.8, label=label)
        for deal, curve in ours[is_ours].groupby("deal"):
            color = "black" if deal == "365" else "tab:red"
            values = 100 * curve.groupby("step")["value"].mean()
            panel.plot(values.index, values, lw=1.2, color=color, label=f"ours, {deal}")
        means = window_means(same_law, ["method"]).mean()
        for start, stop in WINDOWS:
            mean = means[(start, stop)]
            limit = 2 * deviation[(start, stop)].get(entry[0], np.nan)
            panel.fill_between([start, stop], mean - limit, mean + limit, alpha=0.2)
        panel.set(
            title=f"{entry[1]}, q = {entry[2]}, alpha = {entry[0]}", ylim=(10, 95)
        )
        panel.set_xlim(0, WINDOWS[-1][1])
        panel.legend(fontsize=6, loc="lower right")
    for panel in panels[len(entries) :]:
        panel.set_axis_off()
    figure.supxlabel("round")
    figure.supylabel("test accuracy, %")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    """Print and write the tables, and draw our curves over the authors'."""
    parser = argparse.ArgumentParser(description="FAST's curves and ours")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", choices=published.NAMES, default="fashion")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    curves = published.authors_curves(options.data)
    theirs, deviation = _theirs(curves)
    ours = our_curves(options.folder)
    windows = compared(ours, theirs, deviation)
    tables = [
        windows.assign(distance=windows["distance"].map("{:+.1f}".format)),
        compared_probabilities(ours, options.data),
    ]
    text = "\n\n".join(as_text(table) for table in tables if len(table))
    print(text)
    out = options.out or options.folder
    out.mkdir(parents=True, exist_ok=True)
    (out / "against_authors.md").write_text(text + "\n")
    draw(ours, curves, deviation, out / "against_authors.png")


if __name__ == "__main__":
    main()
