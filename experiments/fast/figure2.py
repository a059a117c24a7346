"""FAST, figure 2: who comes, of 100 clients in 1,000 rounds, under Beta, Gamma and Weibull.

    raysafl data show experiments/fast/figure2.py

draws it. Open in the paper: how a draw of the distribution becomes a client. Both readings are
drawn: client i comes with the mass on [i/M, (i+1)/M] (`mass`), or the draws are the clients' rates
(`rates`; Weibull's are near 1, so that almost everyone would come: ten of them are taken). As runs,
these are FedAvg on Fashion-MNIST, alpha = 0.05, the first three equal to table 3's q = 0.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, SCALES, cell

RUNS = {(name, "mass"): cell("Fashion-MNIST", name, 0, 0.05) for name in DISTRIBUTIONS}
RATES = {
    (name, "rates"): RUNS[name, "mass"].replace(participation=fl.ArbitraryRates(dist=dist, m=10))
    for name, dist in DISTRIBUTIONS.items()
}
SWEEP = fl.Sweep(
    name="fast_figure2",
    title="FAST, figure 2: who comes under Beta(1, 10), Gamma(10, 0.01), Weibull(10, 1)",
    axes=("participation", "reading"),
    runs=RUNS | RATES,
    table=fl.Table(rows=["participation"], columns=["reading"], statistic="last5"),
    notes=__doc__,
    scales=SCALES,
)
