"""FSL, figure 2, CIFAR-10: accuracy and rise time against gamma, for rates and server data sizes.

gamma = 0 stands for DS, as printed. The grid beyond gamma is not printed: eta_l = 0.01, 0.05;
n0 = 200, 500, 1000; C = 2, S = 4 as in figure 8.
"""

import raysafl as fl
from experiments.fsl.setting import NOTES, SCALES, scenario1

SIZES, RATES, GAMMAS = (200, 500, 1000), (0.01, 0.05), (0.0, 0.5, 1.0, 1.5, 2.0)
SWEEP = fl.Sweep(
    name="fsl_figure2_cifar10",
    title="FSL, figure 2: accuracy and rise time against gamma (0: DS), CIFAR-10",
    axes=("n0", "lr", "gamma"),
    runs={
        (n0, lr, g): scenario1("CIFAR-10", "FSL" if g else "DS", 2, S=4, lr=lr, gamma=g, n0=n0)
        for n0 in SIZES
        for lr in RATES
        for g in GAMMAS
    },
    table=fl.Table(
        rows=["n0", "lr"],
        columns=["gamma"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text="increasing gamma from 0 (DS) improves the accuracy",
            order=[{"gamma": 0.5}, {"gamma": 0.0}],
        ),
        fl.Claim(
            text="and the convergence time",
            order=[{"gamma": 0.0}, {"gamma": 0.5}],
            statistic="rise_time20",
        ),
        fl.Claim(
            text="gamma over [0.5, 1.5] provides similar performance (3 %)",
            order=[{"gamma": 0.5}, {"gamma": 1.0}, {"gamma": 1.5}],
            within=3.0,
        ),
        fl.Claim(
            text="increasing the server data size improves FSL further (gamma = 1)",
            order=[{"n0": n0} for n0 in reversed(SIZES)],
            where={"gamma": 1.0},
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
