"""FAST, figure 1: the labels of 30 clients under balanced Dirichlet(alpha).

    raysafl data show experiments/fast/figure1.py

draws it. The text says: with alpha = 0.05 some clients hold about 2 to 4 types of labels only,
with alpha = 1 each client owns data with all labels. The figure's data set is not said: ten classes
of equal size (CIFAR-10) here, as both of FAST's image sets have. `tests/test_experiments.py` looks
at both sentences. As runs, these are FedAvg on the two partitions.
"""

import raysafl as fl
from experiments.fast.setting import SCALES, cell

SWEEP = fl.Sweep(
    name="fast_figure1",
    title="FAST, figure 1: 30 clients under balanced Dirichlet(alpha)",
    axes=("alpha",),
    runs={
        (alpha,): cell("CIFAR-10", "Uniform", 1, alpha).replace(
            {"data.clients": 30, "participation.m": 3}
        )
        for alpha in (0.05, 0.1, 0.5, 1.0)
    },
    table=fl.Table(rows=["alpha"], statistic="last5"),
    notes=__doc__,
    scales=SCALES,
)
