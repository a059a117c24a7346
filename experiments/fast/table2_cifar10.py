"""FAST, table 2, CIFAR-10: FedAvg under uniform and arbitrary participation.

Source: FAST, docs/papers.md#fast, table 2, CIFAR-10 part.

Cohorts are drawn uniformly, or by one of three distributions under which some clients
hardly ever take part. The smaller alpha is, the fewer classes a client holds, and the
more arbitrary participation costs.

Run it with `raysafl run experiments/fast/table2_cifar10.py`. Its 36 entries with 1 seed
each take about 160 hours of one core; with `--scale small` they take about 3 minutes on
two cores.
"""

from experiments.fast.sweeps import participation_table

PRINTED = """
participation | 0.1        0.5        1.0
Uniform       | 80.18+-0.6 80.49+-0.4 80.83+-0.7
Beta          | 68.30+-0.9 72.27+-0.4 73.32+-0.6
Gamma         | 70.90+-0.8 73.20+-0.4 73.04+-0.3
Weibull       | 71.74+-0.7 73.21+-0.7 73.75+-0.3
"""
COMPARISON = participation_table(2, "CIFAR-10", "FedAvg", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
