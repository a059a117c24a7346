"""FSL, figure 5, CIFAR-10: heat maps of accuracy over eta_l and C, four methods, no tuning.

Printed: B = 10, S = 10, gamma = 1, FedDyn's alpha = 0.01. Which rates and C is not; table I
names 0.02 and 0.05. FSLsyn learns from 504 images of STL-10, which must be at hand.
"""

import raysafl as fl
from experiments.fsl.setting import CLASSES, NOTES, SCALES, scenario2

METHODS = ("FSL", "FSLsyn", "SCAFFOLD", "FedDyn")
SWEEP = fl.Sweep(
    name="fsl_figure5_cifar10",
    title="FSL, figure 5: accuracy over local rate and classes per client, CIFAR-10",
    axes=("method", "lr", "C"),
    runs={
        (method, lr, C): scenario2("CIFAR-10", method, C, lr)
        for method in METHODS
        for lr in (0.01, 0.02, 0.05, 0.1)
        for C in CLASSES["CIFAR-10"]
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
            text=f"{own} has much better accuracy than {other} in very non-IID cases (C <= 2)",
            order=[{"method": own}, {"method": other}],
            where={"C": C},
        )
        for own in ("FSL", "FSLsyn")
        for other in ("SCAFFOLD", "FedDyn")
        for C in (1, 2)
    ]
    + [
        fl.Claim(
            text="FSLsyn is slightly worse than FSL",
            order=[{"method": "FSL"}, {"method": "FSLsyn"}],
        )
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
