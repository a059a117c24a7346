"""SAFARI, table 1, MNIST: what FedAvg loses when clients never take part.

Source: Yang et al., docs/papers.md#safari, table 1, MNIST part.

Of ten clients, the last s never take part, and each client holds p of the ten classes.
FedAvg loses little with IID data (p = 10), and much where the absent clients hold
classes that nobody else holds (p = 1).

Run it with `raysafl run experiments/safari/table1_mnist.py`. Its 12 entries with two
seeds on each of 32 partitions take about 45 minutes of one core; with `--scale small`
they take about 1 minute on two cores.
"""

from experiments.safari.sweeps import absence_table

PRINTED = """
s | 10    5     2     1
0 | 92.69 89.49 86.17 84.49
2 | 92.64 89.11 86.54 71.58
4 | 92.62 88.81 77.81 57.05
"""
COMPARISON = absence_table(
    "MNIST",
    PRINTED,
    __doc__,
    decrease="a reduction of up to 27.44 %",
    iid_decrease="only a negligible decrease",
    iid_within=1.0,
)
SWEEP = COMPARISON.sweep
