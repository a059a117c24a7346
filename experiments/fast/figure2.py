"""FAST, figure 2: how often 100 clients take part under three distributions.

Source: FAST, docs/papers.md#fast, figure 2.

`raysafl data show experiments/fast/figure2.py` draws the figure for 1,000 rounds within
half a minute, and nothing need be run. Client i
of M participates with the distribution's probability mass on [i/M, (i+1)/M]: the code of
FAST's authors draws numbers and cuts M times each to an integer. In the reading
`authors`, the draws of Weibull(10, 1) are divided by 1.2, as in the code; in `printed`
they are not.

As runs, the entries are those of table 3 on Fashion-MNIST with q = 0 and alpha = 0.1.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, SCALES, entry_run

SWEEP = fl.Sweep(
    name="fast_figure2",
    title="FAST, figure 2: who comes under Beta, Gamma and Weibull",
    axes=("reading", "participation"),
    runs={
        (reading, name): entry_run("Fashion-MNIST", name, 0, 0.1, reading=reading)
        for reading, names in (("authors", DISTRIBUTIONS), ("printed", ["Weibull"]))
        for name in names
    },
    table=fl.Table(rows=["participation"], columns=["reading"], statistic="last5"),
    notes=__doc__,
    scales=SCALES,
)
