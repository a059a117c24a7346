"""SAFARI, table 2, MNIST: how much better SAFARI (q = 0.8) is than FedAvg.

Source: Yang et al., docs/papers.md#safari, table 2, MNIST part.

Of ten clients, the last s never take part, and each client holds p of the ten classes.

The table shows the difference between the accuracies of SAFARI and FedAvg, which the
report computes seed by seed. Where the paper prints a dash for "no statistical
difference within 2 % error bar", a claim stands in place of a number.

Run it with `raysafl run experiments/safari/table2_mnist.py`. Its 24 entries with two
seeds on each of 32 partitions take about 80 minutes of one core; with `--scale small`
they take about 1 minute on two cores.
"""

from experiments.safari.sweeps import improvement_table

PRINTED = """
s | 10 5 2    1
0 | -  - 3.13 4.47
2 | -  - 2.01 16.53
4 | -  - 10.69 31.07
"""
COMPARISON = improvement_table("MNIST", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
