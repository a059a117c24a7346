"""SAFARI, table 8: FedAvg and SAFARI on MNIST when clients never take part.

Source: Yang et al., docs/papers.md#safari, table 8 (five seeds).

Of ten clients, the last s never take part, and each client holds p of the ten classes.
SAFARI is far better than FedAvg where classes are missing among the clients that take
part, and does no harm with IID data (p = 10).

Run it with `raysafl run experiments/safari/table8_mnist.py`. Its 24 entries with two
seeds on each of 32 partitions take about 80 minutes of one core; with `--scale small`
they take about 1 minute on two cores.
"""

from experiments.safari.sweeps import comparison_table

PRINTED = """
s, method | 10          5           2           1
0, FedAvg | 92.67+-0.05 89.70+-0.23 86.04+-0.61 84.60+-0.99
0, SAFARI | 92.60+-0.08 91.08+-0.13 89.42+-0.17 89.10+-0.24
2, FedAvg | 92.64+-0.07 89.13+-0.28 86.34+-0.92 71.66+-0.74
2, SAFARI | 92.62+-0.04 90.68+-0.38 88.75+-0.22 88.50+-0.63
4, FedAvg | 92.58+-0.03 88.76+-0.13 77.82+-0.22 57.09+-0.04
4, SAFARI | 92.51+-0.04 90.41+-0.17 88.27+-0.21 88.06+-0.24
"""
COMPARISON = comparison_table(8, "MNIST", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
