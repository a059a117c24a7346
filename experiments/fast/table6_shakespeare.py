"""FAST, table 6, Shakespeare: FedProx with snapshots.

Source: FAST, docs/papers.md#fast, table 6, Shakespeare part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table6_shakespeare.py`. Its 50 entries with 1
seed each take about 2,400 hours of one core; with `--scale small` they take about 3
minutes on two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | natural
Uniform, 1       | 48.51+-0.6/0
Beta, Ada.(7)    | 48.66+-0.1/62.5
Beta, Ada.(1)    | 47.50+-0.3/94.3
Beta, 0.5        | 48.35+-0.4/50.5
Beta, 0.4        | 48.61+-0.1/59.3
Beta, 0.3        | 48.23+-0.4/70.2
Beta, 0.2        | 48.49+-0.2/79.8
Beta, 0.1        | 47.78+-0.3/90.5
Beta, 0          | 46.98+-0.4/100
Gamma, Ada.(7)   | 47.96+-0.4/50.4
Gamma, Ada.(1)   | 44.36+-0.3/93.9
Gamma, 0.5       | 48.89+-0.1/49.5
Gamma, 0.4       | 48.05+-0.2/58.9
Gamma, 0.3       | 46.98+-0.8/70.8
Gamma, 0.2       | 46.25+-0.8/80.6
Gamma, 0.1       | 44.48+-0.4/91.3
Gamma, 0         | 43.34+-0.5/100
Weibull, Ada.(7) | 48.70+-0.3/55.5
Weibull, Ada.(1) | 47.88+-0.6/92.6
Weibull, 0.5     | 48.69+-0.2/50.3
Weibull, 0.4     | 48.57+-0.2/60.3
Weibull, 0.3     | 48.37+-0.4/70.1
Weibull, 0.2     | 48.14+-0.2/80.6
Weibull, 0.1     | 48.23+-0.2/89.9
Weibull, 0       | 47.64+-0.8/100
"""
COMPARISON = snapshot_table(6, "Shakespeare", "FedProx", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
