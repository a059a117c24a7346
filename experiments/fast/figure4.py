"""FAST, figure 4: how q changes in adaptive FAST+FedAvg, for lambda.

Source: FAST, docs/papers.md#fast, figure 4.

The runs are those of table 8 (Fashion-MNIST, alpha = 0.05; the same run ids) with
lambda = 1, 4 and 7. The text of the paper names 1 and 7; it names neither the figure's
dataset nor its distribution. The value of q in each round is a column of the sweep's
`rounds/`, and its mean over the rounds is 1 - Ratio.

Run it with `raysafl run experiments/fast/figure4.py`. Its 9 entries with 1 seed each
take about 19 hours of one core; with `--scale small` they take about 1 minute on two
cores.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, NOTES, SCALES, entry_run
from experiments.papercheck.comparison import Claim, Comparison

COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="fast_figure4",
        title="FAST, figure 4: q in adaptive FAST+FedAvg on Fashion-MNIST, alpha = 0.05",
        axes=("participation", "lambda"),
        runs={
            (name, strength): entry_run(
                "Fashion-MNIST", name, f"Ada.({strength})", 0.05
            )
            for name in DISTRIBUTIONS
            for strength in (1, 4, 7)
        },
        table=fl.Table(
            rows=["participation"],
            columns=["lambda"],
            statistic="arbitrary_ratio",
            also=["last5", "final"],
        ),
        notes=__doc__ + NOTES,
        scales=SCALES,
    ),
    claims=[
        Claim(
            text=(
                "the larger lambda, the more uniform participation (the smaller the "
                "ratio)"
            ),
            order=[{"lambda": 1}, {"lambda": 4}, {"lambda": 7}],
        ),
        Claim(
            text=(
                "with lambda = 1 the values of q are mostly in 0 to 0.2 (here: their "
                "mean)"
            ),
            where={"lambda": 1},
            least=80.0,
        ),
    ],
)
SWEEP = COMPARISON.sweep
