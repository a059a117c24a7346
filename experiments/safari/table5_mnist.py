"""SAFARI, table 5, MNIST: accuracy for the probability q of a client round.

Source: Yang et al., docs/papers.md#safari, table 5, MNIST part.

Each of ten clients holds one class (p = 1), and the last s never take part. With q = 1
no round is the server's, which is FedAvg.

Run it with `raysafl run experiments/safari/table5_mnist.py`. Its 12 entries with two
seeds on each of 32 partitions take about 40 minutes of one core; with `--scale small`
they take about 1 minute on two cores.
"""

from experiments.safari.sweeps import client_probability_table

PRINTED = """
s | 1.0   0.8   0.6   0.4
0 | 84.49 88.96 89.11 89.1
2 | 71.58 88.11 88.06 88.27
4 | 57.05 88.12 88.44 87.19
"""
COMPARISON = client_probability_table("MNIST", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
