"""FAST, table 2, Fashion-MNIST: FedAvg under uniform and arbitrary participation.

Source: FAST, docs/papers.md#fast, table 2, Fashion-MNIST part.

Cohorts are drawn uniformly, or by one of three distributions under which some clients
hardly ever take part. The smaller alpha is, the fewer classes a client holds, and the
more arbitrary participation costs.

Run it with `raysafl run experiments/fast/table2_fashion_mnist.py`. Its 65 entries with
1 seed each take about 140 hours of one core; with `--scale small` they take about 7
minutes on two cores.
"""

from experiments.fast.sweeps import participation_table

PRINTED = """
participation | 0.05       0.1        0.3        0.5        1.0
Uniform       | 84.10+-2.4 86.85+-1.9 89.39+-0.7 91.39+-0.3 92.21+-0.3
Beta          | 74.84+-1.2 79.89+-4.0 86.40+-1.1 88.74+-0.4 89.43+-0.1
Gamma         | 66.65+-4.7 81.81+-1.8 88.41+-0.5 87.79+-0.4 89.44+-0.2
Weibull       | 73.15+-5.1 78.78+-1.6 88.80+-0.4 89.20+-0.6 89.53+-0.2
"""
COMPARISON = participation_table(2, "Fashion-MNIST", "FedAvg", PRINTED, __doc__)
SWEEP = COMPARISON.sweep
