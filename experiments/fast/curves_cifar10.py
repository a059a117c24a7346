"""FAST's curves on CIFAR-10 at alpha = 0.1, for the first 600 of 10,000 rounds.

Source: FAST, docs/papers.md#fast, table 3, CIFAR-10 part, and the curves that its authors
have published.

The entries are some of table 3's: uniform participation, and each distribution without
snapshots and with half of the rounds as snapshots. 600 rounds are what a CPU can do; they
are held against the same rounds of the authors' curves:
`python -m experiments.fast.against_authors FOLDER --data cifar10` compares the mean
accuracies over rounds 100 to 300 and 300 to 600, and draws both. The authors' runs under
Beta and Weibull are older than these distributions in their code, so they may be of
another law.

Run it with `raysafl run experiments/fast/curves_cifar10.py`. Its 7 entries with 1 seed
each take about 2 hours of one core; with `--scale small` they take about 1 minute on
two cores.
"""

from experiments.fast.setting import DISTRIBUTIONS
from experiments.fast.sweeps import curves

ENTRIES = [("Uniform", 1), *((name, q) for name in DISTRIBUTIONS for q in (0, 0.5))]
# In 600 rounds the readings differ in the law of Weibull only.
COMPARISON = curves("CIFAR-10", ENTRIES, ["authors"], __doc__)
SWEEP = COMPARISON.sweep
