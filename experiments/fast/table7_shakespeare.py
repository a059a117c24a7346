"""FAST, table 7, Shakespeare: FedAvgM with snapshots.

Source: FAST, docs/papers.md#fast, table 7, Shakespeare part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table7_shakespeare.py`. Its 50 entries with 1
seed each take about 2,400 hours of one core; with `--scale small` they take about 3
minutes on two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | natural
Uniform, 1       | 48.66+-0.2/0
Beta, Ada.(7)    | 48.77+-0.1/60.2
Beta, Ada.(1)    | 47.69+-0.3/94.3
Beta, 0.5        | 48.79+-0.5/50.3
Beta, 0.4        | 48.41+-0.2/60.1
Beta, 0.3        | 47.77+-1.3/70.2
Beta, 0.2        | 48.24+-0.2/79.2
Beta, 0.1        | 47.74+-0.2/89.3
Beta, 0          | 46.86+-0.8/100
Gamma, Ada.(7)   | 48.09+-0.5/51.6
Gamma, Ada.(1)   | 44.64+-1.2/93.4
Gamma, 0.5       | 48.31+-0.3/51.0
Gamma, 0.4       | 48.18+-0.3/58.5
Gamma, 0.3       | 47.14+-0.4/70.7
Gamma, 0.2       | 46.70+-0.4/79.3
Gamma, 0.1       | 44.33+-0.3/90.2
Gamma, 0         | 42.65+-0.4/100
Weibull, Ada.(7) | 48.90+-0.3/52.8
Weibull, Ada.(1) | 48.00+-0.3/92.4
Weibull, 0.5     | 48.69+-0.2/51.1
Weibull, 0.4     | 48.56+-0.5/60.6
Weibull, 0.3     | 48.64+-0.2/69.5
Weibull, 0.2     | 48.36+-0.2/79.3
Weibull, 0.1     | 48.38+-0.2/89.7
Weibull, 0       | 47.73+-0.3/100
"""
COMPARISON = snapshot_table(7, "Shakespeare", "FedAvgM", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
