"""SAFARI, table 10: FedAvg and SAFARI on MNIST for m clients a round.

Source: Yang et al., docs/papers.md#safari, table 10.

Each client holds p of the ten classes. Four of ten clients never take part (s = 4), and
m of the other six train in a round. The paper does not print s = 4. We took it because
the rows m = 5 agree with tables 1 and 5 at s = 4, and because m ends at 6.

Run it with `raysafl run experiments/safari/table10_mnist.py`. Its 48 entries with two
seeds on each of 32 partitions take about 2 hours of one core; with `--scale small` they
take about 1 minute on two cores.
"""

from experiments.safari.sweeps import cohort_size_table

PRINTED = """
m, method | 10    5     2     1
1, FedAvg | 92.11 65.63 58.65 49.86
1, SAFARI | 91.88 90.04 87.96 87.83
2, FedAvg | 92.40 83.28 67.03 53.75
2, SAFARI | 92.27 90.00 87.63 87.45
3, FedAvg | 92.51 87.19 75.14 55.76
3, SAFARI | 92.54 90.39 87.63 88.19
4, FedAvg | 92.55 88.60 78.52 56.42
4, SAFARI | 92.45 90.85 88.30 87.88
5, FedAvg | 92.62 88.81 77.81 57.05
5, SAFARI | 92.52 90.35 88.50 88.12
6, FedAvg | 92.58 88.20 77.42 57.12
6, SAFARI | 92.65 90.35 87.67 88.23
"""
COMPARISON = cohort_size_table(10, "MNIST", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
