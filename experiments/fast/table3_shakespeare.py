"""FAST, table 3, Shakespeare: FedAvg with snapshots.

Source: FAST, docs/papers.md#fast, table 3, Shakespeare part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table3_shakespeare.py`. Its 33 entries with 1
seed each take about 1,600 hours of one core; with `--scale small` they take about 2
minutes on two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | natural
Uniform, 1       | 48.86+-0.3/0
Beta, Ada.(7)    | 48.80+-0.3/54.2
Beta, Ada.(1)    | 47.51+-0.6/93.9
Beta, 0.5        | 48.63+-0.3/49.6
Beta, 0.4        | 48.52+-0.3/60.1
Beta, 0.3        | 48.31+-0.3/70.5
Beta, 0.2        | 47.96+-0.4/79.5
Beta, 0.1        | 47.45+-0.6/90.2
Beta, 0          | 46.84+-0.4/100
Gamma, Ada.(7)   | 48.88+-0.3/50.8
Gamma, Ada.(1)   | 45.37+-0.5/92.7
Gamma, 0.5       | 48.66+-0.3/49.7
Gamma, 0.4       | 48.35+-0.4/60.7
Gamma, 0.3       | 47.69+-0.8/69.8
Gamma, 0.2       | 47.11+-0.6/80.0
Gamma, 0.1       | 45.91+-0.7/90.3
Gamma, 0         | 44.46+-1.0/100
Weibull, Ada.(7) | 48.38+-0.3/47.9
Weibull, Ada.(1) | 46.36+-0.8/89.0
Weibull, 0.5     | 48.55+-0.3/50.1
Weibull, 0.4     | 48.05+-0.7/60.4
Weibull, 0.3     | 47.95+-0.4/70.4
Weibull, 0.2     | 47.27+-0.4/80.2
Weibull, 0.1     | 46.63+-1.4/90.6
Weibull, 0       | 45.18+-1.8/100
"""
COMPARISON = snapshot_table(3, "Shakespeare", "FedAvg", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
