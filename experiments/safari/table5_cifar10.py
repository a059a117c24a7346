"""SAFARI, table 5, CIFAR-10 part: accuracy against the probability q of a client round, p = 1."""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
s | 1.0   0.8   0.6   0.4
0 | 75.7  78.27 77.2  76.29
2 | 64.56 77.13 75.17 75.08
4 | 50.7  74.56 73.85 74.19
""")
SWEEP = fl.Sweep(
    name="safari_table5_cifar10",
    title="SAFARI, table 5: a client round with probability q, CIFAR-10, one class per client",
    axes=("s", "q"),
    runs={(s, q): cell(CIFAR10, "FedAvg" if q == 1 else "SAFARI", s=s, p=1, q=q) for s, q in PAPER},
    table=fl.Table(
        rows=["s"], columns=["q"], statistic="best", source="SAFARI, table 5 (CIFAR-10)"
    ),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="even with a server round with probability 0.2 there is a non-negligible gain",
            order=[{"q": 0.8}, {"q": 1.0}],
            margin=1.0,
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
