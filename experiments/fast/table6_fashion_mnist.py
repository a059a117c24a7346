"""FAST, table 6, Fashion-MNIST: FedProx with snapshots.

Source: FAST, docs/papers.md#fast, table 6, Fashion-MNIST part.

Cohorts follow one of three distributions under which some clients hardly ever take
part. With probability q a round is a snapshot, whose cohort is drawn uniformly;
adaptive FAST (`Ada.(lambda)`) changes q during training. An entry is printed as the
accuracy, a slash, and the percentage of rounds with arbitrary participation.

Run it with `raysafl run experiments/fast/table6_fashion_mnist.py`. Its 200 entries with
1 seed each take about 430 hours of one core; with `--scale small` they take about 24
minutes on two cores.
"""

from experiments.fast.sweeps import snapshot_table

PRINTED = """
participation, q | 0.05            0.1
Uniform, 1       | 83.48+-3.9/0    86.67+-0.5/0
Beta, Ada.(7)    | 81.59+-3.9/59.7 85.21+-2.4/72.5
Beta, Ada.(1)    | 78.48+-1.6/88.1 83.65+-1.6/93.5
Beta, 0.5        | 78.78+-3.9/48.8 85.75+-2.2/50.7
Beta, 0.4        | 81.21+-2.2/60.5 84.94+-3.7/60.2
Beta, 0.3        | 78.64+-1.6/70.4 83.49+-2.2/68.9
Beta, 0.2        | 76.48+-2.3/81.9 80.59+-4.2/79.1
Beta, 0.1        | 75.01+-4.5/89.6 83.50+-1.4/89.5
Beta, 0          | 74.74+-0.8/100  77.88+-4.7/100
Gamma, Ada.(7)   | 83.83+-2.3/61.6 85.34+-2.5/73.6
Gamma, Ada.(1)   | 79.84+-2.4/93.8 85.98+-1.6/94.6
Gamma, 0.5       | 84.93+-1.7/50.4 87.00+-1.6/48.2
Gamma, 0.4       | 81.43+-2.5/56.6 87.27+-1.1/58.1
Gamma, 0.3       | 77.21+-0.9/67.8 85.84+-2.5/73.8
Gamma, 0.2       | 81.33+-1.5/80.6 86.74+-1.8/79.6
Gamma, 0.1       | 78.59+-2.4/90.2 86.15+-1.2/89.4
Gamma, 0         | 75.59+-5.5/100  84.49+-1.9/100
Weibull, Ada.(7) | 84.46+-1.7/55.8 86.01+-1.0/64.4
Weibull, Ada.(1) | 83.66+-2.6/92.9 84.11+-1.1/95.4
Weibull, 0.5     | 82.39+-2.2/48.0 86.53+-1.6/48.2
Weibull, 0.4     | 79.16+-4.2/61.4 85.76+-1.9/59.1
Weibull, 0.3     | 80.60+-3.5/67.2 85.72+-1.7/70.8
Weibull, 0.2     | 80.73+-2.4/80.6 85.26+-2.3/81.4
Weibull, 0.1     | 79.73+-2.8/91.5 84.65+-1.7/90.4
Weibull, 0       | 79.55+-2.0/100  83.66+-2.3/100
"""
COMPARISON = snapshot_table(6, "Fashion-MNIST", "FedProx", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
