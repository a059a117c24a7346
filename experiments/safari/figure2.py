"""SAFARI, figure 2: accuracy over rounds on CIFAR-10, s = 4, p = 1, q = 0.4, for n0.

The figure prints no numbers; that n0 is one of tables 4's 500, 5,000, 10,000, and that FedAvg is
beside them, is taken from those tables and from the figure's earlier version.
"""

import raysafl as fl
from experiments.safari.setting import CIFAR10, NOTES, SCALES, cell

SIZES = (10000, 5000, 500, 0)
SWEEP = fl.Sweep(
    name="safari_figure2",
    title="SAFARI, figure 2: CIFAR-10, s = 4, p = 1, q = 0.4, n0 samples at the server",
    axes=("n0",),
    runs={
        (n0,): cell(CIFAR10, "SAFARI" if n0 else "FedAvg", p=1, n0=n0 or None, q=0.4)
        for n0 in SIZES
    },
    table=fl.Table(rows=["n0"], statistic="best", also=["final", "last10", "rise_time"]),
    claims=[
        fl.Claim(
            text="the test accuracy increases as more data are employed at the server",
            order=[{"n0": n0} for n0 in SIZES],
        ),
        fl.Claim(
            text="convergence accelerates as more data are employed (rounds to 40 %)",
            order=[{"n0": 500}, {"n0": 10000}],
            statistic="rounds_to_40",
        ),
    ],
    notes=__doc__ + NOTES,
    scales=SCALES,
)
