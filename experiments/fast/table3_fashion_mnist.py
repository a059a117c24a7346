"""FAST, table 3, Fashion-MNIST: FedAvg with snapshots.

Source: FAST, docs/papers.md#fast, table 3, Fashion-MNIST part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

The text says that adaptive FAST with its default lambda always needs less than 10 %
snapshots, but the table has 11.5 % for Beta at alpha = 0.05.

Run it with `raysafl run experiments/fast/table3_fashion_mnist.py`. Its 166 entries with
1 seed each take about 360 hours of one core; with `--scale small` they take about 20
minutes on two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | 0.05            0.1
Uniform, 1       | 84.10+-2.4/0    86.85+-1.9/0
Beta, Ada.(7)    | 80.92+-3.1/60.3 83.77+-1.8/69.4
Beta, Ada.(1)    | 77.93+-0.7/88.5 81.08+-1.2/95.5
Beta, 0.5        | 80.74+-2.7/49.6 82.83+-2.0/50.2
Beta, 0.4        | 80.89+-1.3/59.6 84.07+-2.2/60.7
Beta, 0.3        | 75.88+-4.4/69.9 81.40+-3.5/70.3
Beta, 0.2        | 76.78+-1.5/77.9 80.61+-1.3/82.6
Beta, 0.1        | 74.42+-5.3/90.9 81.15+-0.7/88.5
Beta, 0          | 74.84+-1.2/100  79.89+-4.0/100
Gamma, Ada.(7)   | 79.95+-4.9/59.3 84.42+-2.7/74.0
Gamma, Ada.(1)   | 71.48+-4.5/91.8 82.00+-2.1/96.9
Gamma, 0.5       | 77.39+-2.7/50.4 85.52+-2.3/52.0
Gamma, 0.4       | 77.69+-3.5/61.0 84.23+-2.7/59.5
Gamma, 0.3       | 76.87+-2.6/68.5 85.91+-1.7/69.4
Gamma, 0.2       | 72.40+-4.7/79.3 84.40+-3.1/78.2
Gamma, 0.1       | 72.23+-3.2/89.7 84.55+-2.4/91.1
Gamma, 0         | 66.65+-4.7/100  81.81+-1.8/100
Weibull, Ada.(7) | 77.89+-3.3/59.5 83.72+-2.7/77.3
Weibull, Ada.(1) | 77.14+-2.7/90.4 79.83+-3.6/97.0
Weibull, 0.5     | 79.10+-4.2/50.7 85.54+-0.7/49.8
Weibull, 0.4     | 77.72+-3.4/60.3 84.85+-1.1/62.3
Weibull, 0.3     | 77.08+-4.2/71.3 84.48+-2.3/69.5
Weibull, 0.2     | 75.66+-4.4/80.8 81.37+-4.1/80.5
Weibull, 0.1     | 75.36+-2.6/89.5 82.42+-2.5/89.4
Weibull, 0       | 73.15+-5.1/100  78.78+-1.6/100
"""
COMPARISON = snapshot_table(3, "Fashion-MNIST", "FedAvg", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
