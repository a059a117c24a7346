"""SAFARI, table 5, CIFAR-10: accuracy for the probability q of a client round.

Source: Yang et al., docs/papers.md#safari, table 5, CIFAR-10 part.

Each of ten clients holds one class (p = 1), and the last s never take part. With q = 1
no round is the server's, which is FedAvg.

Run it with `raysafl run experiments/safari/table5_cifar10.py`. Its 12 entries with 3
seeds each take about 2,143 hours of one core, so use a GPU; with `--scale small` they
take about 3 minutes on two cores.
"""

from experiments.safari.sweeps import client_probability_table

PRINTED = """
s | 1.0   0.8   0.6   0.4
0 | 75.7  78.27 77.2  76.29
2 | 64.56 77.13 75.17 75.08
4 | 50.7  74.56 73.85 74.19
"""
COMPARISON = client_probability_table("CIFAR-10", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
