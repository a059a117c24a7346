"""SAFARI, table 9: CIFAR-10, s of 10 clients never come, p classes each; three seeds."""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

PAPER = printed("""
s, method | 10          5           2           1
0, FedAvg | 81.48+-0.38 79.78+-0.34 78.36+-0.17 76.39+-0.60
0, SAFARI | 81.40+-0.45 80.13+-0.33 79.00+-0.25 78.34+-0.12
2, FedAvg | 80.11+-0.14 78.63+-0.33 77.14+-0.42 65.16+-0.56
2, SAFARI | 80.41+-0.10 79.13+-0.28 77.66+-0.10 77.21+-0.39
4, FedAvg | 78.16+-0.33 75.30+-0.22 67.78+-0.38 50.67+-0.25
4, SAFARI | 79.28+-0.21 78.27+-0.21 76.52+-0.16 75.18+-0.54
""")
SWEEP = fl.Sweep(
    name="safari_table9_cifar10",
    title="SAFARI, table 9: CIFAR-10, s of 10 clients never come, p classes each",
    axes=("s", "method", "p"),
    runs={(s, method, p): cell(CIFAR10, method, s=s, p=p) for s, method, p in PAPER},
    table=fl.Table(
        rows=["s", "method"], columns=["p"], statistic="best", source="SAFARI, table 9 (CIFAR-10)"
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
