"""FAST's curves on Fashion-MNIST at alpha = 0.1, for 600 rounds on two deals.

Source: FAST, docs/papers.md#fast, table 3, Fashion-MNIST part, and the curves that its
authors have published.

The entries are some of table 3's: uniform participation, and each distribution without
snapshots and with half of the rounds as snapshots. Nothing is printed for their first
600 rounds, so they are held against the authors' curves:
`python -m experiments.fast.against_authors FOLDER` compares the mean accuracies over
rounds 100 to 300 and 300 to 600, and draws both.

Run it with `raysafl run experiments/fast/curves.py`. Its 16 entries with 1 seed each
take about 21 hours of one core; with `--scale small` they take about 2 minutes on two
cores.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, NOTES, SCALES, entry_runs, window

ENTRIES = {("Uniform", 1): ("Uniform", 1, 0.1)}
ENTRIES |= {(name, q): (name, q, 0.1) for name in DISTRIBUTIONS for q in (0, 0.5)}
RUNS = entry_runs("Fashion-MNIST", "FedAvg", ENTRIES)
SWEEP = fl.Sweep(
    name="fast_curves",
    title="FAST+FedAvg on Fashion-MNIST, alpha = 0.1, for 600 rounds",
    axes=("reading", "deal", "participation", "q"),
    runs={key: window(run) for key, run in RUNS.items()},
    table=fl.Table(
        rows=["reading", "participation", "q"],
        columns=["deal"],
        statistic="last5",
        also=["last5_std", "rolling20", "best", "arbitrary_ratio"],
    ),
    claims=[
        fl.Claim(
            text=f"{name}: half of the rounds as snapshots are better than none",
            order=[{"participation": name, "q": 0.5}, {"participation": name, "q": 0}],
        )
        for name in DISTRIBUTIONS
    ],
    notes=__doc__ + NOTES,
    scales={name: scale for name, scale in SCALES.items() if scale is not window},
)
