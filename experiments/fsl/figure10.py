"""FSL, figure 10: accuracy over rounds of FSL, FSLsyn, FedDyn and SCAFFOLD, CIFAR-10.

The runs are those of figure 5 (equal ids), drawn as curves.
"""

from dataclasses import replace

import raysafl as fl
from experiments.fsl.figure5_cifar10 import SWEEP as FIGURE5

METHODS = ("FSL", "FSLsyn")
SWEEP = replace(
    FIGURE5,
    name="fsl_figure10",
    title="FSL, figure 10: accuracy over rounds, CIFAR-10",
    table=fl.Table(
        rows=["lr", "method"],
        columns=["C"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text=f"{own}'s rise time is below that of {other} in most cases",
            order=[{"method": other}, {"method": own}],
            statistic="rise_time20",
        )
        for own in METHODS
        for other in ("SCAFFOLD", "FedDyn")
    ]
    + [
        fl.Claim(
            text=f"{own} is comparable to SCAFFOLD, if not better, in most cases (3 %)",
            order=[{"method": own}, {"method": "SCAFFOLD"}],
            margin=-3.0,
        )
        for own in METHODS
    ],
    notes=__doc__ + FIGURE5.notes,
)
