"""FAST, figure 1: how balanced Dirichlet(alpha) spreads labels over 30 clients.

Source: FAST, docs/papers.md#fast, figure 1.

`raysafl data show experiments/fast/figure1.py` draws the figure within a minute, and
nothing need be run. The text of the paper says that with alpha = 0.05 some clients hold
only about 2 to 4 types of labels, and that with alpha = 1 each client holds all labels.
`tests/house/test_experiments.py` checks both sentences. The paper does not name the
figure's dataset. We took CIFAR-10, whose ten classes have equal sizes, as those of
Fashion-MNIST have.

As runs, which the paper does not show, the entries are FedAvg under uniform participation
on these partitions.
"""

import raysafl as fl
from experiments.fast.setting import SCALES, entry_run

SWEEP = fl.Sweep(
    name="fast_figure1",
    title="FAST, figure 1: 30 clients under balanced Dirichlet(alpha)",
    axes=("alpha",),
    runs={
        (alpha,): entry_run("CIFAR-10", "Uniform", 1, alpha).replace(
            {
                "data.clients": 30,
                "data.partition": fl.Dirichlet(alpha=alpha),
                "participation.m": 3,
            }
        )
        for alpha in (0.05, 0.1, 0.5, 1.0)
    },
    table=fl.Table(rows=["alpha"], statistic="last5"),
    notes=__doc__,
    scales=SCALES,
)
