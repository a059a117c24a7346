"""SAFARI, table 2, CIFAR-10: how much better SAFARI (q = 0.8) is than FedAvg.

Source: Yang et al., docs/papers.md#safari, table 2, CIFAR-10 part.

Of ten clients, the last s never take part, and each client holds p of the ten classes.

The table shows the difference between the accuracies of SAFARI and FedAvg, which the
report computes seed by seed. Where the paper prints a dash for "no statistical
difference within 2 % error bar", a claim stands in place of a number.

Run it with `raysafl run experiments/safari/table2_cifar10.py`. Its 24 entries with 3
seeds each take about 4,501 hours of one core, so use a GPU; with `--scale small` they
take about 6 minutes on two cores.
"""

from experiments.safari.sweeps import improvement_table

PRINTED = """
s | 10 5    2    1
0 | -  -    -    2.57
2 | -  -    -    12.57
4 | -  2.93 9.32 23.86
"""
COMPARISON = improvement_table("CIFAR-10", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
