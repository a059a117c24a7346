"""SAFARI, table 2, CIFAR-10 part: by how much SAFARI (q = 0.8) is better than FedAvg.

Shown are differences to FedAvg, seed by seed; a dash is printed for "no statistical difference
within 2 % error bar" and stands here as a claim.
"""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell, no_difference
from experiments.tools.printed_tables import cells, dashes, printed

TABLE = """
s | 10 5    2    1
0 | -  -    -    2.57
2 | -  -    -    12.57
4 | -  2.93 9.32 23.86
"""
SWEEP = fl.Sweep(
    name="safari_table2_cifar10",
    title="SAFARI, table 2: accuracy of SAFARI (q = 0.8) minus that of FedAvg, CIFAR-10",
    axes=("s", "method", "p"),
    runs={
        (s, method, p): cell(CIFAR10, method, s=s, p=p)
        for s, p in cells(TABLE)
        for method in ("FedAvg", "SAFARI")
    },
    table=fl.Table(
        rows=["s", "method"],
        columns=["p"],
        statistic="best",
        minus={"method": "FedAvg"},
        source="SAFARI, table 2 (CIFAR-10)",
    ),
    paper={(s, "SAFARI", p): number for (s, p), number in printed(TABLE).items()},
    claims=no_difference(dashes(TABLE), ("s", "p")),
    notes=__doc__ + NOTES,
    scales=SCALES,
)
