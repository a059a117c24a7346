"""FAST, table 4, CIFAR-10: FedProx under uniform and arbitrary participation.

Source: FAST, docs/papers.md#fast, table 4, CIFAR-10 part.

Cohorts are drawn uniformly, or by one of three distributions under which some clients
hardly ever take part. The smaller alpha is, the fewer classes a client holds, and the
more arbitrary participation costs.

Run it with `raysafl run experiments/fast/table4_cifar10.py`. Its 36 entries with 1 seed
each take about 160 hours of one core; with `--scale small` they take about 3 minutes on
two cores.
"""

from experiments.fast.sweeps import participation_table

PRINTED = """
participation | 0.1        0.5        1.0
Uniform       | 79.53+-0.5 80.67+-0.9 81.82+-0.5
Beta          | 72.76+-1.0 74.76+-0.7 76.54+-0.2
Gamma         | 65.94+-1.3 79.04+-0.9 80.00+-0.3
Weibull       | 72.94+-1.2 77.30+-0.3 77.63+-0.3
"""
COMPARISON = participation_table(4, "CIFAR-10", "FedProx", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
