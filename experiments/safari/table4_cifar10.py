"""SAFARI, table 4: how much the gain over FedAvg on CIFAR-10 depends on n0.

Source: Yang et al., docs/papers.md#safari, table 4.

The server holds n0 samples. Four of ten clients never take part, each client holds p of
the ten classes, and q = 0.8. FedAvg stands in the row n0 = 0.

The table shows the difference between the accuracies of SAFARI and FedAvg, which the
report computes seed by seed. Where the paper prints a dash for "no statistical
difference within 2 % error bar", a claim stands in place of a number.

Run it with `raysafl run experiments/safari/table4_cifar10.py`. Its 16 entries with 3
seeds each take about 3,001 hours of one core, so use a GPU; with `--scale small` they
take about 4 minutes on two cores.
"""

from experiments.safari.sweeps import server_data_table

PRINTED = """
n0    | 10 5    2    1
500   | -  -    3.45 7.14
5000  | -  -    8.15 20.52
10000 | -  2.93 9.32 23.86
"""
COMPARISON = server_data_table(4, "CIFAR-10", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
