"""FAST, table 8: adaptive FAST on Fashion-MNIST for lambda, alpha = 0.05.

Source: FAST, docs/papers.md#fast, table 8.

In adaptive FAST the probability q of a snapshot changes during training, and a larger
lambda makes more rounds snapshots. An entry is printed as the accuracy, a slash, and the
percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table8_fashion_mnist.py`. Its 90 entries with
1 seed each take about 200 hours of one core; with `--scale small` they take about 10
minutes on two cores.
"""

from experiments.fast.sweeps import lambda_table

PRINTED = """
lambda | Beta            Gamma           Weibull
1      | 77.93+-0.7/88.5 71.48+-4.5/91.8 77.14+-2.7/90.4
2      | 76.15+-4.2/87.4 78.95+-2.3/82.3 73.52+-4.0/83.8
3      | 76.87+-3.8/87.1 77.50+-4.7/77.6 74.79+-4.0/72.5
4      | 79.95+-3.4/78.8 80.08+-0.8/67.3 79.50+-3.3/66.1
5      | 80.52+-3.4/74.7 81.98+-1.1/56.7 78.26+-4.9/61.6
6      | 78.69+-3.4/68.0 81.53+-2.8/53.8 80.04+-2.1/58.6
7      | 80.92+-3.1/60.3 79.95+-4.9/59.3 77.89+-3.3/59.5
8      | 79.65+-2.9/61.7 82.07+-1.7/50.6 80.87+-2.6/60.6
9      | 81.13+-1.6/66.6 80.44+-3.7/52.9 74.52+-8.9/59.1
"""
COMPARISON = lambda_table(8, 0.05, PRINTED, __doc__)
SWEEP = COMPARISON.sweep
