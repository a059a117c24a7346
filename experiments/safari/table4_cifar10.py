"""SAFARI, table 4: by how much SAFARI (q = 0.8) is better than FedAvg on CIFAR-10, for n0.

s = 4 of 10 clients never come. Shown are differences to FedAvg (n0 = 0), seed by seed; a dash is
printed for "no statistical difference within 2 % error bar" and stands here as a claim.
"""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell, no_difference
from experiments.tools.printed_tables import cells, dashes, printed

TABLE = """
n0    | 10 5    2    1
500   | -  -    3.45 7.14
5000  | -  -    8.15 20.52
10000 | -  2.93 9.32 23.86
"""
SIZES = sorted({n0 for n0, p in cells(TABLE)}, reverse=True)
SWEEP = fl.Sweep(
    name="safari_table4_cifar10",
    title="SAFARI, table 4: accuracy of SAFARI with n0 samples minus that of FedAvg, CIFAR-10",
    axes=("n0", "p"),
    runs={(0, p): cell(CIFAR10, "FedAvg", p=p) for p in (10, 5, 2, 1)}
    | {(n0, p): cell(CIFAR10, "SAFARI", p=p, n0=n0) for n0, p in cells(TABLE)},
    table=fl.Table(
        rows=["n0"],
        columns=["p"],
        statistic="best",
        minus={"n0": 0},
        source="SAFARI, table 4",
    ),
    paper=printed(TABLE),
    claims=[
        *no_difference(dashes(TABLE), ("n0", "p")),
        *(
            fl.Claim(
                text="more server data help more (p = 1, 2)",
                order=[{"n0": n0} for n0 in SIZES],
                where={"p": p},
            )
            for p in (1, 2)
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
