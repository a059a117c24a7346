"""FAST, table 7, Fashion-MNIST: FedAvgM with snapshots.

Source: FAST, docs/papers.md#fast, table 7, Fashion-MNIST part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table7_fashion_mnist.py`. Its 200 entries with
1 seed each take about 430 hours of one core; with `--scale small` they take about 24
minutes on two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | 0.05            0.1
Uniform, 1       | 84.23+-1.3/0    87.21+-2.0/0
Beta, Ada.(7)    | 83.86+-1.4/61.0 85.27+-3.1/65.9
Beta, Ada.(1)    | 80.38+-1.5/93.0 83.40+-1.5/93.7
Beta, 0.5        | 83.52+-2.3/50.1 86.94+-1.7/51.5
Beta, 0.4        | 83.51+-2.5/58.9 84.97+-2.5/58.1
Beta, 0.3        | 83.54+-2.1/68.4 83.09+-4.8/69.4
Beta, 0.2        | 80.34+-1.3/77.9 84.20+-2.1/81.8
Beta, 0.1        | 70.96+-5.5/92.3 82.29+-1.4/90.4
Beta, 0          | 70.48+-2.6/100  82.18+-2.9/100
Gamma, Ada.(7)   | 78.14+-2.4/72.8 83.26+-0.9/83.9
Gamma, Ada.(1)   | 74.30+-2.2/92.3 80.22+-1.6/95.9
Gamma, 0.5       | 78.08+-3.4/50.4 86.39+-1.8/50.9
Gamma, 0.4       | 79.58+-2.6/58.8 83.88+-2.4/61.4
Gamma, 0.3       | 77.39+-1.5/71.9 83.56+-3.4/70.5
Gamma, 0.2       | 75.29+-2.1/80.1 82.31+-2.2/79.3
Gamma, 0.1       | 69.63+-3.1/92.2 81.08+-1.3/90.6
Gamma, 0         | 65.76+-3.6/100  80.01+-1.5/100
Weibull, Ada.(7) | 83.50+-3.1/62.8 85.12+-2.8/68.3
Weibull, Ada.(1) | 83.91+-1.0/94.2 83.32+-2.0/92.8
Weibull, 0.5     | 83.16+-3.2/51.7 86.29+-1.4/50.9
Weibull, 0.4     | 81.93+-1.8/59.0 84.47+-2.1/62.3
Weibull, 0.3     | 83.22+-3.1/71.4 83.54+-2.2/70.6
Weibull, 0.2     | 82.67+-2.2/80.6 83.19+-1.7/79.3
Weibull, 0.1     | 82.90+-3.2/89.1 83.38+-1.6/90.3
Weibull, 0       | 75.97+-4.8/100  80.79+-2.8/100
"""
COMPARISON = snapshot_table(7, "Fashion-MNIST", "FedAvgM", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
