"""SAFARI, table 2, MNIST part: by how much SAFARI (q = 0.8) is better than FedAvg.

Shown are differences to FedAvg, seed by seed; a dash is printed for "no statistical difference
within 2 % error bar" and stands here as a claim.
"""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES, cell, no_difference
from experiments.tools.printed_tables import cells, dashes, printed

TABLE = """
s | 10 5 2    1
0 | -  - 3.13 4.47
2 | -  - 2.01 16.53
4 | -  - 10.69 31.07
"""
SWEEP = fl.Sweep(
    name="safari_table2_mnist",
    title="SAFARI, table 2: accuracy of SAFARI (q = 0.8) minus that of FedAvg, MNIST",
    axes=("s", "method", "p"),
    runs={
        (s, method, p): cell(MNIST, method, s=s, p=p)
        for s, p in cells(TABLE)
        for method in ("FedAvg", "SAFARI")
    },
    table=fl.Table(
        rows=["s", "method"],
        columns=["p"],
        statistic="best",
        minus={"method": "FedAvg"},
        source="SAFARI, table 2 (MNIST)",
    ),
    paper={(s, "SAFARI", p): number for (s, p), number in printed(TABLE).items()},
    claims=no_difference(dashes(TABLE), ("s", "p")),
    notes=__doc__ + NOTES,
    scales=SCALES,
)
