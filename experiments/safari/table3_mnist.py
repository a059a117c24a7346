"""SAFARI, table 3: by how much SAFARI (q = 0.8) is better than FedAvg on MNIST, for n0.

s = 4 of 10 clients never come. Shown are differences to FedAvg (n0 = 0), seed by seed; a dash is
printed for "no statistical difference within 2 % error bar" and stands here as a claim.
"""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES, cell, no_difference
from experiments.tools.printed_tables import cells, dashes, printed

TABLE = """
n0   | 10 5 2     1
50   | -  - 4.82  16.65
100  | -  - 6.87  20.26
500  | -  - 9.16  29.82
1000 | -  - 10.69 31.07
"""
SIZES = sorted({n0 for n0, p in cells(TABLE)}, reverse=True)
SWEEP = fl.Sweep(
    name="safari_table3_mnist",
    title="SAFARI, table 3: accuracy of SAFARI with n0 samples minus that of FedAvg, MNIST",
    axes=("n0", "p"),
    runs={(0, p): cell(MNIST, "FedAvg", p=p) for p in (10, 5, 2, 1)}
    | {(n0, p): cell(MNIST, "SAFARI", p=p, n0=n0) for n0, p in cells(TABLE)},
    table=fl.Table(
        rows=["n0"],
        columns=["p"],
        statistic="best",
        minus={"n0": 0},
        source="SAFARI, table 3",
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
