"""SAFARI, table 3: how much the gain over FedAvg on MNIST depends on n0.

Source: Yang et al., docs/papers.md#safari, table 3.

The server holds n0 samples. Four of ten clients never take part, each client holds p of
the ten classes, and q = 0.8. FedAvg stands in the row n0 = 0.

The table shows the difference between the accuracies of SAFARI and FedAvg, which the
report computes seed by seed. Where the paper prints a dash for "no statistical
difference within 2 % error bar", a claim stands in place of a number.

An earlier version of the paper prints the same entries a second time (docs/papers.md#safari,
its table 1). The two prints differ by 1.15 points in the mean, and by 3.9 in one entry.
The report shows the earlier one under "Other printed numbers".

Run it with `raysafl run experiments/safari/table3_mnist.py`. Its 20 entries with two
seeds on each of 32 partitions take about 65 minutes of one core; with `--scale small`
they take about 1 minute on two cores.
"""

from experiments.safari.sweeps import server_data_table

PRINTED = """
n0   | 10 5 2     1
50   | -  - 4.82  16.65
100  | -  - 6.87  20.26
500  | -  - 9.16  29.82
1000 | -  - 10.69 31.07
"""
EARLIER = """
n0   | 10 5 2     1
50   | -  - 4.15  12.75
100  | -  - 6.55  22.19
500  | -  - 10.29 29.12
1000 | -  - 10.88 31.42
"""
COMPARISON = server_data_table(3, "MNIST", PRINTED, __doc__, EARLIER)
SWEEP = COMPARISON.sweep
