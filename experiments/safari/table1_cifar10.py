"""SAFARI, table 1, CIFAR-10 part: FedAvg when s of 10 clients never come, p classes each."""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
s | 10    5     2     1
0 | 81.12 79.42 78.22 75.7
2 | 79.97 78.54 76.68 64.56
4 | 77.78 75.55 67.34 50.7
""")
SWEEP = fl.Sweep(
    name="safari_table1_cifar10",
    title="SAFARI, table 1: FedAvg on CIFAR-10, s of 10 clients never come, p classes each",
    axes=("s", "p"),
    runs={(s, p): cell(CIFAR10, "FedAvg", s=s, p=p) for s, p in PAPER},
    table=fl.Table(
        rows=["s"], columns=["p"], statistic="best", source="SAFARI, table 1 (CIFAR-10)"
    ),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="a reduction of up to 25 % from s = 0 to s = 4 (p = 1)",
            order=[{"s": 0}, {"s": 4}],
            where={"p": 1},
            margin=20.0,
        ),
        fl.Claim(
            text="with IID data (p = 10) only a slight decrease, from 81.12 to 77.78 %",
            order=[{"s": 0}, {"s": 4}],
            where={"p": 10},
            within=4.0,
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
