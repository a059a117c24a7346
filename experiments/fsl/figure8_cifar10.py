"""FSL, figure 8, CIFAR-10: FSL, FSL-p and DS (shown at gamma = 0) against gamma.

Printed: (C, S) = (2, 4); n0 = 200 and eta_l = 0.01 as in figure 7.
"""

import raysafl as fl
from experiments.fsl.setting import NOTES, SCALES, scenario1

CELLS = [("DS", 0.0)] + [(method, g) for method in ("FSL", "FSL-p") for g in (0.5, 1.0, 1.5, 2.0)]
SWEEP = fl.Sweep(
    name="fsl_figure8_cifar10",
    title="FSL, figure 8: FSL and FSL-p against gamma (DS at 0), CIFAR-10",
    axes=("method", "gamma"),
    runs={
        (method, g): scenario1("CIFAR-10", method, 2, S=4, n0=200, gamma=g) for method, g in CELLS
    },
    table=fl.Table(
        rows=["method"],
        columns=["gamma"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text="FSL significantly outperforms FSL-p at every gamma",
            order=[{"method": "FSL"}, {"method": "FSL-p"}],
        ),
        *(
            fl.Claim(
                text="FSL outperforms DS at every gamma",
                order=[{"method": "FSL", "gamma": g}, {"method": "DS", "gamma": 0.0}],
            )
            for g in (0.5, 1.0, 1.5, 2.0)
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
