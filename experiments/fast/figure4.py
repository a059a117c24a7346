"""FAST, figure 4: how q moves in adaptive FAST+FedAvg, against lambda.

The runs are those of table 8 (Fashion-MNIST, alpha = 0.05; equal ids) with lambda = 1, 4, 7: the
text names 1 and 7, the figure's data set and distribution are not said. q over the rounds is a
column of `rounds/`; its mean is 1 - Ratio.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, NOTES, SCALES, cell

SWEEP = fl.Sweep(
    name="fast_figure4",
    title="FAST, figure 4: q in adaptive FAST+FedAvg on Fashion-MNIST, alpha = 0.05",
    axes=("participation", "lambda"),
    runs={
        (name, lam): cell("Fashion-MNIST", name, f"Ada.({lam})", 0.05)
        for name in DISTRIBUTIONS
        for lam in (1, 4, 7)
    },
    table=fl.Table(
        rows=["participation"],
        columns=["lambda"],
        statistic="arbitrary_ratio",
        also=["last5", "final"],
    ),
    claims=[
        fl.Claim(
            text="the larger lambda, the more uniform participation (the smaller the ratio)",
            order=[{"lambda": 1}, {"lambda": 4}, {"lambda": 7}],
        ),
        fl.Claim(
            text="with lambda = 1 the values of q are mostly in 0 to 0.2 (here: their mean)",
            where={"lambda": 1},
            least=80.0,
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
