"""SAFARI, table 5, MNIST part: accuracy against the probability q of a client round, p = 1."""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
s | 1.0   0.8   0.6   0.4
0 | 84.49 88.96 89.11 89.1
2 | 71.58 88.11 88.06 88.27
4 | 57.05 88.12 88.44 87.19
""")
SWEEP = fl.Sweep(
    name="safari_table5_mnist",
    title="SAFARI, table 5: a client round with probability q, MNIST, one class per client",
    axes=("s", "q"),
    runs={(s, q): cell(MNIST, "FedAvg" if q == 1 else "SAFARI", s=s, p=1, q=q) for s, q in PAPER},
    table=fl.Table(rows=["s"], columns=["q"], statistic="best", source="SAFARI, table 5 (MNIST)"),
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
