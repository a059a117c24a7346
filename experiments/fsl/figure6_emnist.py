"""FSL, figure 6, EMNIST: accuracy against C classes per client; nobody starts pre-trained.

Printed: n0 = 225, S = 5, eta_l = 0.01, gamma in N n0 / n, 0.5, 1, 1.5, 2. C is named in part by the
text: 1, 2, 5 and all.
"""

import raysafl as fl
from experiments.fsl.setting import CLASSES, GAMMAS, NOTES, SCALES, scenario1

DATASET = "EMNIST"
METHODS = {"FL": {}, "DS": {}} | {f"FSL {g}": {"gamma": g} for g in GAMMAS[DATASET]}
CELLS = [(C, name) for C in CLASSES[DATASET] for name in METHODS]
SWEEP = fl.Sweep(
    name="fsl_figure6_emnist",
    title="FSL, figure 6: accuracy against classes per client and gamma, EMNIST, no pre-training",
    axes=("C", "method"),
    runs={
        (C, name): scenario1(DATASET, name.split()[0], C, pretrain=0, **METHODS[name])
        for C, name in CELLS
    },
    table=fl.Table(
        rows=["method"],
        columns=["C"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text="the acceleration by server learning is significant, even in the IID case",
            order=[{"method": "FL"}, {"method": "FSL 1.0"}],
            statistic="rise_time20",
        ),
        fl.Claim(
            text="DS offers little to no benefit in the IID case (2 %)",
            order=[{"method": "DS"}, {"method": "FL"}],
            where={"C": 45},
            within=2.0,
        ),
        fl.Claim(
            text="FSL has the highest accuracy",
            order=[{"method": "FSL 1.0"}, {"method": "DS"}],
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
