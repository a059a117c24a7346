"""SAFARI, table 1, CIFAR-10: what FedAvg loses when clients never take part.

Source: Yang et al., docs/papers.md#safari, table 1, CIFAR-10 part.

Of ten clients, the last s never take part, and each client holds p of the ten classes.
FedAvg loses little with IID data (p = 10), and much where the absent clients hold
classes that nobody else holds (p = 1).

Run it with `raysafl run experiments/safari/table1_cifar10.py`. Its 12 entries with 3
seeds each take about 2,746 hours of one core, so use a GPU; with `--scale small` they
take about 3 minutes on two cores.
"""

from experiments.safari.sweeps import absence_table

PRINTED = """
s | 10    5     2     1
0 | 81.12 79.42 78.22 75.7
2 | 79.97 78.54 76.68 64.56
4 | 77.78 75.55 67.34 50.7
"""
COMPARISON = absence_table(
    "CIFAR-10",
    PRINTED,
    __doc__,
    decrease="a reduction of up to 25 %",
    iid_decrease="only a slight decrease, from 81.12 to 77.78 %",
    iid_within=4.0,
)
SWEEP = COMPARISON.sweep
