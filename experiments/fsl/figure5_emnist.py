"""FSL, figure 5, EMNIST: heat maps of accuracy over eta_l and C, four methods, no tuning.

Printed: B = 50, S = 5, gamma = 1, FedDyn's alpha = 0.01. Which rates and C is not; table I
names 0.02 and 0.05. FSLsyn learns from 675 drawn letters.
"""

import raysafl as fl
from experiments.fsl.setting import CLASSES, NOTES, SCALES, scenario2

METHODS = ("FSL", "FSLsyn", "SCAFFOLD", "FedDyn")
SWEEP = fl.Sweep(
    name="fsl_figure5_emnist",
    title="FSL, figure 5: accuracy over local rate and classes per client, EMNIST",
    axes=("method", "lr", "C"),
    runs={
        (method, lr, C): scenario2("EMNIST", method, C, lr)
        for method in METHODS
        for lr in (0.01, 0.02, 0.05, 0.1)
        for C in CLASSES["EMNIST"]
    },
    table=fl.Table(
        rows=["method", "lr"],
        columns=["C"],
        panels=["method"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text=f"FSL and FSLsyn have an accuracy comparable to {other}'s (5 %)",
            order=[{"method": own}, {"method": other}],
            within=5.0,
        )
        for own in ("FSL", "FSLsyn")
        for other in ("SCAFFOLD", "FedDyn")
    ]
    + [
        fl.Claim(
            text="FSLsyn is comparable to FSL (5 %)",
            order=[{"method": "FSL"}, {"method": "FSLsyn"}],
            within=5.0,
        )
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
