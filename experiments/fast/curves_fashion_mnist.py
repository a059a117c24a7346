"""FAST's curves on Fashion-MNIST at alpha = 0.1, for 600 rounds on two deals.

Source: FAST, docs/papers.md#fast, table 3, Fashion-MNIST part, and the curves that its
authors have published.

The entries are some of table 3's: uniform participation, each distribution without
snapshots and with half of the rounds as snapshots, and Beta with a tenth of them and with
adaptive FAST. Nothing is printed for their first 600 rounds, so they are held against the
authors' curves: `python -m experiments.fast.against_authors FOLDER` compares the mean
accuracies over rounds 100 to 300 and 300 to 600, and draws both.

Run it with `raysafl run experiments/fast/curves_fashion_mnist.py`. Its 32 entries with
1 seed each take about 38 hours of one core; with `--scale small` they take about 3
minutes on two cores.
"""

from experiments.fast.setting import DISTRIBUTIONS, READINGS
from experiments.fast.sweeps import curves
from experiments.papercheck.comparison import Claim

ENTRIES = [("Uniform", 1), *((name, q) for name in DISTRIBUTIONS for q in (0, 0.5))]
ENTRIES += [("Beta", q) for q in (0.1, "Ada.(1)", "Ada.(7)")]
CLAIMS = [
    Claim(
        text=f"{name}: half of the rounds as snapshots are better than none",
        order=[{"participation": name, "q": 0.5}, {"participation": name, "q": 0}],
    )
    for name in DISTRIBUTIONS
]
COMPARISON = curves("Fashion-MNIST", ENTRIES, READINGS, __doc__, CLAIMS)
SWEEP = COMPARISON.sweep
