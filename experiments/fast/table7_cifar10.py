"""FAST, table 7, CIFAR-10: FedAvgM with snapshots.

Source: FAST, docs/papers.md#fast, table 7, CIFAR-10 part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table7_cifar10.py`. Its 75 entries with 1 seed
each take about 340 hours of one core; with `--scale small` they take about 7 minutes on
two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | 0.1
Uniform, 1       | 77.74+-2.3/0
Beta, Ada.(7)    | 76.92+-1.6/66.7
Beta, Ada.(1)    | 73.30+-0.7/96.8
Beta, 0.5        | 77.61+-0.8/49.2
Beta, 0.4        | 76.26+-1.6/59.9
Beta, 0.3        | 76.37+-0.3/69.5
Beta, 0.2        | 75.56+-1.5/79.8
Beta, 0.1        | 74.54+-1.4/90.4
Beta, 0          | 72.96+-1.0/100
Gamma, Ada.(7)   | 76.21+-0.7/70.3
Gamma, Ada.(1)   | 70.61+-0.7/98.1
Gamma, 0.5       | 77.59+-1.8/49.9
Gamma, 0.4       | 77.15+-1.1/60.1
Gamma, 0.3       | 74.69+-1.2/70.1
Gamma, 0.2       | 73.67+-1.2/79.7
Gamma, 0.1       | 71.88+-0.7/89.9
Gamma, 0         | 67.40+-0.9/100
Weibull, Ada.(7) | 77.45+-0.8/67.5
Weibull, Ada.(1) | 75.23+-1.2/96.5
Weibull, 0.5     | 78.17+-1.1/49.9
Weibull, 0.4     | 77.86+-1.2/59.7
Weibull, 0.3     | 76.61+-0.9/70.0
Weibull, 0.2     | 76.71+-0.6/79.4
Weibull, 0.1     | 75.78+-0.9/90.2
Weibull, 0       | 74.38+-1.5/100
"""
COMPARISON = snapshot_table(7, "CIFAR-10", "FedAvgM", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
