"""SAFARI, table 1, MNIST part: FedAvg when s of 10 clients never come, p classes each."""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
s | 10    5     2     1
0 | 92.69 89.49 86.17 84.49
2 | 92.64 89.11 86.54 71.58
4 | 92.62 88.81 77.81 57.05
""")
SWEEP = fl.Sweep(
    name="safari_table1_mnist",
    title="SAFARI, table 1: FedAvg on MNIST, s of 10 clients never come, p classes each",
    axes=("s", "p"),
    runs={(s, p): cell(MNIST, "FedAvg", s=s, p=p) for s, p in PAPER},
    table=fl.Table(rows=["s"], columns=["p"], statistic="best", source="SAFARI, table 1 (MNIST)"),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="a reduction of up to 27.44 % from s = 0 to s = 4 (p = 1)",
            order=[{"s": 0}, {"s": 4}],
            where={"p": 1},
            margin=20.0,
        ),
        fl.Claim(
            text="with IID data (p = 10) only a negligible decrease",
            order=[{"s": 0}, {"s": 4}],
            where={"p": 10},
            within=1.0,
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
