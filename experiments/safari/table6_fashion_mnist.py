"""SAFARI, table 6: FedAvg on Fashion-MNIST, s of 150 clients never come."""

import raysafl as fl
from experiments.safari.setting import FASHION, FASHION_NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
| 0           30          60         90          120
| 87.71+-0.09 86.17+-1.57 82.37+-5.8 80.71+-0.38 78.53+-3.05
""")
SWEEP = fl.Sweep(
    name="safari_table6_fashion_mnist",
    title="SAFARI, table 6: FedAvg on Fashion-MNIST, s of 150 clients never come",
    axes=("s",),
    runs={(s,): cell(FASHION, "FedAvg", p=1, s=s, m=10) for (s,) in PAPER},
    table=fl.Table(rows=[], columns=["s"], statistic="best", source="SAFARI, table 6"),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="the accuracy falls with the number of clients that never come",
            order=[{"s": s} for (s,) in PAPER],
        )
    ],
    notes=__doc__ + FASHION_NOTES,
    scales=SCALES,
)
