"""FAST, figure 3: accuracy over rounds of FAST+FedAvg on three datasets.

Source: FAST, docs/papers.md#fast, figure 3.

The figure shows table 3 as curves. Its runs are those of table 3, with the same run
ids; alpha is 0.05 for Fashion-MNIST. The option `--only dataset=CIFAR-10` runs one
dataset only.

Run it with `raysafl run experiments/fast/figure3.py`. Its 75 entries with 1 seed each
take about 1,400 hours of one core; with `--scale small` they take about 7 minutes on
two cores.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, NOTES, SCALES, entry_run
from experiments.papercheck.comparison import Claim, Comparison

ALPHAS = {"Fashion-MNIST": 0.05, "CIFAR-10": 0.1, "Shakespeare": "natural"}
SNAPSHOT_PROBS = (0, 0.1, 0.2, 0.3, 0.4, 0.5, "Ada.(1)", "Ada.(7)")
CURVES = [(name, q) for name in DISTRIBUTIONS for q in SNAPSHOT_PROBS] + [
    ("Uniform", 1)
]
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="fast_figure3",
        title="FAST, figure 3: FAST+FedAvg under arbitrary participation",
        axes=("dataset", "participation", "q"),
        runs={
            (dataset, name, q): entry_run(dataset, name, q, alpha)
            for dataset, alpha in ALPHAS.items()
            for name, q in CURVES
        },
        table=fl.Table(
            rows=["dataset", "q"],
            columns=["participation"],
            statistic="last5",
        ),
        notes=__doc__ + NOTES,
        scales=SCALES,
    ),
    claims=[
        *(
            Claim(
                text="all of FAST is beyond the baseline q = 0",
                order=[{"q": q}, {"q": 0}],
            )
            for q in SNAPSHOT_PROBS[1:]
        ),
        *(
            Claim(
                text="and lower than uniform participation, or almost equal to it",
                order=[
                    {"participation": "Uniform", "q": 1},
                    {"participation": name, "q": 0.5},
                ],
                margin=-1.0,
            )
            for name in DISTRIBUTIONS
        ),
    ],
)
SWEEP = COMPARISON.sweep
