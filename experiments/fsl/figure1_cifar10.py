"""FSL, figure 1, CIFAR-10: accuracy against C classes per client.

Printed: n0 = 500, S = 4, eta_l = 0.01, gamma in N n0 / n, 0.5, 1, 1.5, 2. C is named in part by the
text: 1, 2, 5 and all.
"""

import raysafl as fl
from experiments.fsl.setting import CLASSES, GAMMAS, NOTES, SCALES, scenario1

DATASET = "CIFAR-10"
METHODS = {"FL": {}, "DS": {}} | {f"FSL {g}": {"gamma": g} for g in GAMMAS[DATASET]}
CELLS = [(C, name) for C in CLASSES[DATASET] for name in METHODS]
SWEEP = fl.Sweep(
    name="fsl_figure1_cifar10",
    title="FSL, figure 1: accuracy against classes per client and gamma, CIFAR-10",
    axes=("C", "method"),
    runs={(C, name): scenario1(DATASET, name.split()[0], C, **METHODS[name]) for C, name in CELLS},
    table=fl.Table(
        rows=["method"],
        columns=["C"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text="all reach a similar accuracy in the IID case (3 %)",
            order=[{"method": name} for name in ("FSL 1.0", "DS", "FL")],
            where={"C": 10},
            within=3.0,
        ),
        *(
            fl.Claim(
                text="FL suffers significantly as C decreases; DS greatly improves over it",
                order=[{"method": "DS"}, {"method": "FL"}],
                where={"C": C},
                margin=3.0,
            )
            for C in (1, 2)
        ),
        fl.Claim(
            text="in all cases FSL has the highest accuracy",
            order=[{"method": "FSL 1.0"}, {"method": "DS"}],
        ),
        fl.Claim(
            text="in all cases FSL converges fastest (rise time)",
            order=[{"method": "DS"}, {"method": "FSL 1.0"}],
            statistic="rise_time20",
        ),
        fl.Claim(
            text="FSL performs fairly consistently for a range of gamma (3 %)",
            order=[{"method": f"FSL {g}"} for g in (0.5, 1.0, 1.5)],
            within=3.0,
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
