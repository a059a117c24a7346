"""FAST, table 5: adaptive FAST on Fashion-MNIST for lambda, alpha = 0.1.

Source: FAST, docs/papers.md#fast, table 5.

In adaptive FAST the probability q of a snapshot changes during training, and a larger
lambda makes more rounds snapshots. An entry is printed as the accuracy, a slash, and the
percentage of rounds with arbitrary participation.

Gamma with lambda = 2 is printed with the same digits as Beta with lambda = 9 (79.63 +-
5.2), so one of the two may be a slip of the paper.

Run it with `raysafl run experiments/fast/table5_fashion_mnist.py`. Its 90 entries with
1 seed each take about 200 hours of one core; with `--scale small` they take about 10
minutes on two cores.
"""

from experiments.fast.sweeps import lambda_table

PRINTED = """
lambda | Beta            Gamma           Weibull
1      | 81.08+-1.2/95.5 82.00+-2.1/96.9 79.83+-3.6/97.0
2      | 80.79+-1.5/90.7 79.63+-5.2/90.4 81.76+-4.6/93.0
3      | 81.37+-2.3/85.2 82.76+-3.4/86.4 78.88+-2.5/91.2
4      | 82.40+-1.8/80.4 84.43+-0.7/82.3 82.09+-3.1/85.8
5      | 81.63+-1.7/72.7 84.47+-1.0/77.2 84.01+-2.0/82.3
6      | 81.99+-0.7/73.1 86.02+-0.5/77.3 83.29+-2.6/80.3
7      | 83.77+-1.8/69.4 84.42+-2.7/74.0 83.72+-2.7/77.3
8      | 81.84+-1.8/68.5 84.55+-1.4/71.4 84.65+-3.7/74.8
9      | 79.63+-5.2/63.9 83.89+-1.9/70.8 84.84+-1.6/72.7
"""
COMPARISON = lambda_table(5, 0.1, PRINTED, __doc__)
SWEEP = COMPARISON.sweep
