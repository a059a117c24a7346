"""FSL, figure 7, EMNIST: FSL, its non-incremental form FSL-p, and DS, for C and S.

Printed: n0 = 225, eta_l = 0.01, gamma = 1. Which C and S is not; here C = 1, 2, 5, S = 5, 15, 45.
"""

import raysafl as fl
from experiments.fsl.setting import NOTES, SCALES, scenario1

SWEEP = fl.Sweep(
    name="fsl_figure7_emnist",
    title="FSL, figure 7: FSL, FSL-p and DS, EMNIST",
    axes=("C", "S", "method"),
    runs={
        (C, S, method): scenario1("EMNIST", method, C, S=S, n0=225)
        for C in (1, 2, 5)
        for S in (5, 15, 45)
        for method in ("FSL", "FSL-p", "DS")
    },
    table=fl.Table(
        rows=["C", "method"],
        columns=["S"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        fl.Claim(
            text="FSL significantly outperforms FSL-p and DS in all cases",
            order=[{"method": "FSL"}, {"method": other}],
        )
        for other in ("FSL-p", "DS")
    ]
    + [
        fl.Claim(
            text="FSL-p is slightly worse than DS",
            order=[{"method": "DS"}, {"method": "FSL-p"}],
        )
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
