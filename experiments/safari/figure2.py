"""SAFARI, figure 2: accuracy over rounds on CIFAR-10 for n0 samples at the server.

Source: Yang et al., docs/papers.md#safari, figure 2.

Four of ten clients never take part (s = 4), each client holds one class (p = 1), and a
round is a client round with probability q = 0.4. The figure prints no numbers. We took
the sizes n0 = 500, 5,000 and 10,000 from table 4, and FedAvg as the curve beside them
from that table and from an earlier version of the figure.

Run it with `raysafl run experiments/safari/figure2.py`. Its 4 entries with 3 seeds each
take about 714 hours of one core, so use a GPU; with `--scale small` they take about 1
minute on two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Claim, Comparison
from experiments.safari.setting import NOTES, SCALES, entry_run

SERVER_SIZES = (10000, 5000, 500, 0)  # 0 stands for FedAvg, which has no server data
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_figure2",
        title="SAFARI, figure 2: CIFAR-10, s = 4, p = 1, q = 0.4, n0 samples at the server",
        axes=("n0",),
        runs={
            (n0,): entry_run(
                "CIFAR-10", "SAFARI" if n0 else "FedAvg", p=1, n0=n0 or None, q=0.4
            )
            for n0 in SERVER_SIZES
        },
        table=fl.Table(
            rows=["n0"],
            statistic="best",
            also=["final", "last10", "rise_time"],
        ),
        notes=__doc__ + NOTES,
        scales=SCALES,
    ),
    claims=[
        Claim(
            text="the test accuracy increases as more data are employed at the server",
            order=[{"n0": n0} for n0 in SERVER_SIZES],
        ),
        Claim(
            text="convergence accelerates as more data are employed (rounds to 40 %)",
            order=[{"n0": 500}, {"n0": 10000}],
            statistic="rounds_to_40",
        ),
    ],
)
SWEEP = COMPARISON.sweep
