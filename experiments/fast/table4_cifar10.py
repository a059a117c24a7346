"""FAST, table 4, CIFAR-10 part: FedProx under uniform and arbitrary participation."""

from experiments.fast.setting import of_participation

TABLE = """
participation | 0.1        0.5        1.0
Uniform       | 79.53+-0.5 80.67+-0.9 81.82+-0.5
Beta          | 72.76+-1.0 74.76+-0.7 76.54+-0.2
Gamma         | 65.94+-1.3 79.04+-0.9 80.00+-0.3
Weibull       | 72.94+-1.2 77.30+-0.3 77.63+-0.3
"""
SWEEP = of_participation(4, "CIFAR-10", "FedProx", TABLE, __doc__)
