"""FAST, figure 3: accuracy over rounds of FAST+FedAvg on three data sets; table 3 as curves.

The runs are those of table 3 (equal ids), alpha = 0.05 for Fashion-MNIST. `--only dataset=CIFAR-10`
runs one of them.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, NOTES, SCALES, cell

ALPHAS = {"Fashion-MNIST": 0.05, "CIFAR-10": 0.1, "Shakespeare": "natural"}
SHARES = (0, 0.1, 0.2, 0.3, 0.4, 0.5, "Ada.(1)", "Ada.(7)")
KEYS = [(name, q) for name in DISTRIBUTIONS for q in SHARES] + [("Uniform", 1)]
SWEEP = fl.Sweep(
    name="fast_figure3",
    title="FAST, figure 3: FAST+FedAvg under arbitrary participation",
    axes=("dataset", "participation", "q"),
    runs={
        (dataset, name, q): cell(dataset, name, q, alpha)
        for dataset, alpha in ALPHAS.items()
        for name, q in KEYS
    },
    table=fl.Table(rows=["dataset", "q"], columns=["participation"], statistic="last5"),
    claims=[
        fl.Claim(text="all of FAST is beyond the baseline q = 0", order=[{"q": q}, {"q": 0}])
        for q in SHARES[1:]
    ]
    + [
        fl.Claim(
            text="and lower than uniform participation, or almost equal to it",
            order=[{"participation": "Uniform", "q": 1}, {"participation": name, "q": 0.5}],
            margin=-1.0,
        )
        for name in DISTRIBUTIONS
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
