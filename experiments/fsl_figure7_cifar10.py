"""FSL, figure 7, CIFAR-10: FSL, its non-incremental form FSL-p, and DS, for C and S.

Printed: n0 = 200, eta_l = 0.01, gamma = 1. Which C and S is not; here C = 1, 2, 5, S = 2, 4, 10.
"""

from _fsl import NOTES, SCALES, scenario1

from raysafl import Claim, Sweep, Table

SWEEP = Sweep(
    name="fsl_figure7_cifar10",
    title="FSL, figure 7: FSL, FSL-p and DS, CIFAR-10",
    axes=("C", "S", "method"),
    runs={
        (C, S, method): scenario1("CIFAR-10", method, C, S=S, n0=200)
        for C in (1, 2, 5)
        for S in (2, 4, 10)
        for method in ("FSL", "FSL-p", "DS")
    },
    table=Table(
        rows=["C", "method"],
        columns=["S"],
        statistic="rolling20",
        also=["rise_time20", "final", "best"],
    ),
    claims=[
        Claim(
            text="FSL significantly outperforms FSL-p and DS in all cases",
            order=[{"method": "FSL"}, {"method": other}],
        )
        for other in ("FSL-p", "DS")
    ]
    + [
        Claim(
            text="FSL-p is slightly worse than DS",
            order=[{"method": "DS"}, {"method": "FSL-p"}],
        )
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
