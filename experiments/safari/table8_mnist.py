"""SAFARI, table 8: MNIST, s of 10 clients never come, p classes each; five seeds."""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
s, method | 10          5           2           1
0, FedAvg | 92.67+-0.05 89.70+-0.23 86.04+-0.61 84.60+-0.99
0, SAFARI | 92.60+-0.08 91.08+-0.13 89.42+-0.17 89.10+-0.24
2, FedAvg | 92.64+-0.07 89.13+-0.28 86.34+-0.92 71.66+-0.74
2, SAFARI | 92.62+-0.04 90.68+-0.38 88.75+-0.22 88.50+-0.63
4, FedAvg | 92.58+-0.03 88.76+-0.13 77.82+-0.22 57.09+-0.04
4, SAFARI | 92.51+-0.04 90.41+-0.17 88.27+-0.21 88.06+-0.24
""")
SWEEP = fl.Sweep(
    name="safari_table8_mnist",
    title="SAFARI, table 8: MNIST, s of 10 clients never come, p classes each",
    axes=("s", "method", "p"),
    runs={(s, method, p): cell(MNIST, method, s=s, p=p) for s, method, p in PAPER},
    table=fl.Table(
        rows=["s", "method"], columns=["p"], statistic="best", source="SAFARI, table 8 (MNIST)"
    ),
    paper=PAPER,
    claims=[
        fl.Claim(
            text="SAFARI is better than FedAvg where clients have one class each",
            order=[{"method": "SAFARI"}, {"method": "FedAvg"}],
            where={"p": 1},
            margin=1.0,
        ),
        fl.Claim(
            text="no difference for homogeneous data (p = 10)",
            order=[{"method": "SAFARI"}, {"method": "FedAvg"}],
            where={"p": 10},
            within=2.0,
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
