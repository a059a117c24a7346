"""SAFARI, table 9: FedAvg and SAFARI on CIFAR-10 when clients never take part.

Source: Yang et al., docs/papers.md#safari, table 9 (three seeds).

Of ten clients, the last s never take part, and each client holds p of the ten classes.
SAFARI is far better than FedAvg where classes are missing among the clients that take
part, and does no harm with IID data (p = 10).

Run it with `raysafl run experiments/safari/table9_cifar10.py`. Its 24 entries with 3
seeds each take about 4,501 hours of one core, so use a GPU; with `--scale small` they
take about 6 minutes on two cores.
"""

from experiments.safari.sweeps import comparison_table

PRINTED = """
s, method | 10          5           2           1
0, FedAvg | 81.48+-0.38 79.78+-0.34 78.36+-0.17 76.39+-0.60
0, SAFARI | 81.40+-0.45 80.13+-0.33 79.00+-0.25 78.34+-0.12
2, FedAvg | 80.11+-0.14 78.63+-0.33 77.14+-0.42 65.16+-0.56
2, SAFARI | 80.41+-0.10 79.13+-0.28 77.66+-0.10 77.21+-0.39
4, FedAvg | 78.16+-0.33 75.30+-0.22 67.78+-0.38 50.67+-0.25
4, SAFARI | 79.28+-0.21 78.27+-0.21 76.52+-0.16 75.18+-0.54
"""
COMPARISON = comparison_table(9, "CIFAR-10", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
