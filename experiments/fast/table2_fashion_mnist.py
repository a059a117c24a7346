"""FAST, table 2, Fashion-MNIST part: FedAvg under uniform and arbitrary participation."""

from experiments.fast.setting import of_participation

TABLE = """
participation | 0.05       0.1        0.3        0.5        1.0
Uniform       | 84.10+-2.4 86.85+-1.9 89.39+-0.7 91.39+-0.3 92.21+-0.3
Beta          | 74.84+-1.2 79.89+-4.0 86.40+-1.1 88.74+-0.4 89.43+-0.1
Gamma         | 66.65+-4.7 81.81+-1.8 88.41+-0.5 87.79+-0.4 89.44+-0.2
Weibull       | 73.15+-5.1 78.78+-1.6 88.80+-0.4 89.20+-0.6 89.53+-0.2
"""
SWEEP = of_participation(2, "Fashion-MNIST", "FedAvg", TABLE, __doc__)
