"""FAST, figure 2: how often 100 clients take part under three distributions.

Source: FAST, docs/papers.md#fast, figure 2.

`raysafl data show experiments/fast/figure2.py` draws the figure for 1,000 rounds. The
paper leaves open how a draw of the distribution becomes a client, so both readings are
drawn. In the reading `mass`, client i of M participates with the distribution's
probability mass on [i/M, (i+1)/M]. In the reading `rates`, each client draws its own
participation rate; ten clients are then taken by these weights, because Weibull's rates
are near 1, so that nearly all clients would take part otherwise.

As runs, the entries are FedAvg on Fashion-MNIST with alpha = 0.05. Those of the reading
`mass` are the runs of table 3 with q = 0.

Run it with `raysafl run experiments/fast/figure2.py`. Its 6 entries with 3 seeds each
take about 70 hours of one core, so use a GPU; with `--scale small` they take about 3
minutes on two cores.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, SCALES, entry_run

MASS = {
    (name, "mass"): entry_run("Fashion-MNIST", name, 0, 0.05) for name in DISTRIBUTIONS
}
RATES = {
    (name, "rates"): MASS[name, "mass"].replace(
        participation=fl.ArbitraryRates(dist=dist, m=10)
    )
    for name, dist in DISTRIBUTIONS.items()
}
SWEEP = fl.Sweep(
    name="fast_figure2",
    title=(
        "FAST, figure 2: who comes under Beta(1, 10), Gamma(10, 0.01), Weibull(10, 1)"
    ),
    axes=("participation", "reading"),
    runs=MASS | RATES,
    table=fl.Table(rows=["participation"], columns=["reading"], statistic="last5"),
    notes=__doc__,
    scales=SCALES,
)
