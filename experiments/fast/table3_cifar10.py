"""FAST, table 3, CIFAR-10: FedAvg with snapshots.

Source: FAST, docs/papers.md#fast, table 3, CIFAR-10 part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Gamma with q = 0.1 is printed with the same digits as in table 6 (74.77 +- 0.6, 89.7 %),
so one of the two may be a slip of the paper.

Run it with `raysafl run experiments/fast/table3_cifar10.py`. Its 75 entries with 1 seed
each take about 340 hours of one core; with `--scale small` they take about 7 minutes on
two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | 0.1
Uniform, 1       | 80.18+-0.6/0
Beta, Ada.(7)    | 76.83+-1.0/67.5
Beta, Ada.(1)    | 68.94+-4.0/96.6
Beta, 0.5        | 78.03+-1.3/50.7
Beta, 0.4        | 78.04+-0.2/60.3
Beta, 0.3        | 76.84+-0.6/70.1
Beta, 0.2        | 73.90+-1.2/80.0
Beta, 0.1        | 72.98+-1.4/89.9
Beta, 0          | 68.30+-0.9/100
Gamma, Ada.(7)   | 76.26+-1.4/66.1
Gamma, Ada.(1)   | 73.47+-0.5/97.3
Gamma, 0.5       | 77.76+-0.5/49.6
Gamma, 0.4       | 78.45+-0.7/59.9
Gamma, 0.3       | 75.67+-1.1/70.7
Gamma, 0.2       | 75.70+-0.7/81.0
Gamma, 0.1       | 74.77+-0.6/89.7
Gamma, 0         | 70.90+-0.8/100
Weibull, Ada.(7) | 76.37+-1.3/66.6
Weibull, Ada.(1) | 72.91+-0.4/97.4
Weibull, 0.5     | 79.17+-1.0/50.2
Weibull, 0.4     | 77.70+-0.5/59.5
Weibull, 0.3     | 75.80+-0.6/69.9
Weibull, 0.2     | 75.21+-0.6/79.1
Weibull, 0.1     | 74.14+-1.1/89.8
Weibull, 0       | 71.74+-0.7/100
"""
COMPARISON = snapshot_table(3, "CIFAR-10", "FedAvg", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
