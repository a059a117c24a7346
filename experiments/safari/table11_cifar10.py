"""SAFARI, table 11: CIFAR-10, m of the six clients that come train in a round (s = 4).

That s = 4 is not printed; the rows m = 5 agree with tables 1 and 5 at s = 4, and m ends at 6.
"""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
m, method | 10    5     2     1
1, FedAvg | 78.61 75.34 53.02 10.31
1, SAFARI | 79.80 78.70 75.90 63.04
2, FedAvg | 78.48 76.46 67.24 45.87
2, SAFARI | 79.15 77.90 76.75 72.93
4, FedAvg | 78.59 75.21 68.05 50.25
4, SAFARI | 79.98 77.56 76.60 75.51
5, FedAvg | 77.78 75.55 67.34 50.70
5, SAFARI | 79.47 78.48 76.66 74.56
""")
SWEEP = fl.Sweep(
    name="safari_table11_cifar10",
    title="SAFARI, table 11: CIFAR-10, m clients a round, p classes each",
    axes=("m", "method", "p"),
    runs={(m, method, p): cell(CIFAR10, method, m=m, p=p) for m, method, p in PAPER},
    table=fl.Table(
        rows=["m", "method"], columns=["p"], statistic="best", source="SAFARI, table 11 (CIFAR-10)"
    ),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="few clients a round harm FedAvg where data are not IID (m = 1 against 5)",
            order=[{"m": 5}, {"m": 1}],
            where={"method": "FedAvg", "p": p},
        )
        for p in (5, 2, 1)
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
