"""SAFARI, table 7: Fashion-MNIST, 90 of 150 clients never come; D0 in % of the training set.

FedAvg's cell is printed as 80 +- 0.38 here and as 80.71 +- 0.38 in table 6 (s = 90); it is one run.
The source text garbles neither, so that one of them is the paper's slip.
"""

import raysafl as fl
from experiments.safari.setting import FASHION, FASHION_NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
| 0        1          10          20
| 80+-0.38 82.0+-0.03 85.58+-1.05 85.14+-0.23
""")
SIZES = {0: None, 1: 600, 10: 6000, 20: 12000}  # of 60,000
SWEEP = fl.Sweep(
    name="safari_table7_fashion_mnist",
    title="SAFARI, table 7: Fashion-MNIST, 90 of 150 clients never come, server data in %",
    axes=("server data (%)",),
    runs={
        (part,): cell(FASHION, "SAFARI" if part else "FedAvg", p=1, s=90, m=10, n0=SIZES[part])
        for (part,) in PAPER
    },
    table=fl.Table(
        rows=[], columns=["server data (%)"], statistic="best", source="SAFARI, table 7"
    ),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="server data help, and 10 % more than 1 %",
            order=[{"server data (%)": part} for part in (10, 1, 0)],
        )
    ],
    notes=__doc__ + FASHION_NOTES,
    scales=SCALES,
)
