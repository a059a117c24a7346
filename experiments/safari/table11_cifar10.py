"""SAFARI, table 11: FedAvg and SAFARI on CIFAR-10 for m clients a round.

Source: Yang et al., docs/papers.md#safari, table 11.

Each client holds p of the ten classes. Four of ten clients never take part (s = 4), and
m of the other six train in a round. The paper does not print s = 4. We took it because
the rows m = 5 agree with tables 1 and 5 at s = 4, and because m ends at 6.

Run it with `raysafl run experiments/safari/table11_cifar10.py`. Its 32 entries with 3
seeds each take about 3,082 hours of one core, so use a GPU; with `--scale small` they
take about 4 minutes on two cores.
"""

from experiments.safari.sweeps import cohort_size_table

PRINTED = """
m, method | 10    5     2     1
1, FedAvg | 78.61 75.34 53.02 10.31
1, SAFARI | 79.80 78.70 75.90 63.04
2, FedAvg | 78.48 76.46 67.24 45.87
2, SAFARI | 79.15 77.90 76.75 72.93
4, FedAvg | 78.59 75.21 68.05 50.25
4, SAFARI | 79.98 77.56 76.60 75.51
5, FedAvg | 77.78 75.55 67.34 50.70
5, SAFARI | 79.47 78.48 76.66 74.56
"""
COMPARISON = cohort_size_table(11, "CIFAR-10", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
