"""SAFARI, table 7: how much server data helps on Fashion-MNIST.

Source: Yang et al., docs/papers.md#safari, table 7.

Of 150 clients, 90 never take part, and each client holds one class. The server's
dataset D0 has 0 (FedAvg), 1, 10 or 20 % of the size of the training set.

FedAvg's entry is printed as 80 +- 0.38 here and as 80.71 +- 0.38 in table 6 (s = 90),
although it is the same run. The text of the paper is legible at both places, so one of
the two is a slip of the paper.

Run it with `raysafl run experiments/safari/table7_fashion_mnist.py`. Its 4 entries with
four partitions, each with a seed of its own, take about 1.2 hours of one core; with
`--scale small` they take about 1 minute on two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Claim, Comparison
from experiments.safari.setting import (
    FASHION_MNIST_NOTES,
    PRINTED_STATISTIC,
    SCALES,
    entry_run,
)
from experiments.tools.printed_tables import printed_numbers

PRINTED = printed_numbers("""
| 0        1          10          20
| 80+-0.38 82.0+-0.03 85.58+-1.05 85.14+-0.23
""")
SAMPLES = {0: None, 1: 600, 10: 6000, 20: 12000}  # n0 for each percentage of 60,000
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_table7_fashion_mnist",
        title="SAFARI, table 7: Fashion-MNIST, 90 of 150 clients never come, server data in %",
        axes=("server data (%)",),
        runs={
            (percent,): entry_run(
                "Fashion-MNIST",
                "SAFARI" if percent else "FedAvg",
                p=1,
                s=90,
                m=10,
                n0=SAMPLES[percent],
            )
            for (percent,) in PRINTED
        },
        table=fl.Table(
            rows=[],
            columns=["server data (%)"],
            statistic=PRINTED_STATISTIC,
        ),
        notes=__doc__ + FASHION_MNIST_NOTES,
        scales=SCALES,
    ),
    source="SAFARI, table 7",
    seeds=3,
    paper=PRINTED,
    claims=[
        Claim(
            text="server data help, and 10 % more than 1 %",
            order=[{"server data (%)": percent} for percent in (10, 1, 0)],
        )
    ],
)
SWEEP = COMPARISON.sweep
