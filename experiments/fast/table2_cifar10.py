"""FAST, table 2, CIFAR-10 part: FedAvg under uniform and arbitrary participation."""

from experiments.fast.setting import of_participation

TABLE = """
participation | 0.1        0.5        1.0
Uniform       | 80.18+-0.6 80.49+-0.4 80.83+-0.7
Beta          | 68.30+-0.9 72.27+-0.4 73.32+-0.6
Gamma         | 70.90+-0.8 73.20+-0.4 73.04+-0.3
Weibull       | 71.74+-0.7 73.21+-0.7 73.75+-0.3
"""
SWEEP = of_participation(2, "CIFAR-10", "FedAvg", TABLE, __doc__)
