"""SAFARI, table 6: what FedAvg on Fashion-MNIST loses when clients never take part.

Source: Yang et al., docs/papers.md#safari, table 6.

Of 150 clients, s never take part. Each client holds one class.

Run it with `raysafl run experiments/safari/table6_fashion_mnist.py`. Its 5 entries with
four partitions, each with a seed of its own, take about 1.5 hours of one core; with
`--scale small` they take about 2 minutes on two cores.
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
| 0           30          60         90          120
| 87.71+-0.09 86.17+-1.57 82.37+-5.8 80.71+-0.38 78.53+-3.05
""")
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_table6_fashion_mnist",
        title="SAFARI, table 6: FedAvg on Fashion-MNIST, s of 150 clients never come",
        axes=("s",),
        runs={
            (s,): entry_run("Fashion-MNIST", "FedAvg", p=1, s=s, m=10)
            for (s,) in PRINTED
        },
        table=fl.Table(
            rows=[],
            columns=["s"],
            statistic=PRINTED_STATISTIC,
        ),
        notes=__doc__ + FASHION_MNIST_NOTES,
        scales=SCALES,
    ),
    source="SAFARI, table 6",
    seeds=3,
    paper=PRINTED,
    claims=[
        Claim(
            text="the accuracy falls with the number of clients that never come",
            order=[{"s": s} for (s,) in PRINTED],
        )
    ],
)
SWEEP = COMPARISON.sweep
