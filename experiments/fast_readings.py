"""FAST: which reading of what the paper leaves open is nearest to table 3 (CIFAR-10)?

Readings: how a draw becomes a client (the distribution's mass on the client's part of [0, 1]; or
draws as the clients' rates, of which ten clients are taken by weight, or each comes on its own),
and what a client runs: one or five local epochs of SGD, SGD with momentum 0.9, or Adam, all at the
printed rate. Not tried: whose training accuracy drives q (the policy is told the cohort's, while it
trains). Cells: the baseline, half of the rounds enforced, and adaptive with lambda = 7 under Beta;
uniform. Weibull's rates are near 1, so that with `rates, free` about 95 of 100 clients would come,
against the printed 10 %: that reading is tried for Beta alone, where about nine come.
"""

from _fast import NOTES, SCALES, cell
from _printed import printed

from raysafl import ArbitraryRates, Beta, Snapshot, Sweep, Table

TABLE3 = printed("""
participation, q | 0.1
Uniform, 1       | 80.18+-0.6
Beta, 0          | 68.30+-0.9
Beta, 0.5        | 78.03+-1.3
Beta, Ada.(7)    | 76.83+-1.0
""")
DRAWS = {"mass": None, "rates, ten": 10, "rates, free": None}
TRAINING = {
    (optimizer, epochs): changes | {"local.epochs": epochs}
    for optimizer, changes in {
        "SGD": {"local.momentum": 0.0},
        "momentum": {},
        "Adam": {"local.momentum": 0.0, "local.optimizer": "adam"},
    }.items()
    for epochs in (1, 5)
}


def run(draw, optimizer, epochs, participation, q):
    base = cell("CIFAR-10", participation, q, 0.1).replace(TRAINING[optimizer, epochs])
    if draw == "mass" or participation == "Uniform":
        return base
    rates = ArbitraryRates(dist=Beta(), m=DRAWS[draw])
    snapshots = isinstance(base.participation, Snapshot)
    return base.replace({"participation.base" if snapshots else "participation": rates})


READINGS = [("mass", *how) for how in TRAINING]
READINGS += [(draw, "momentum", 1) for draw in ("rates, ten", "rates, free")]
KEYS = [
    (*reading, name, q)
    for reading in READINGS
    for name, q, _ in TABLE3
    if reading[0] == "mass" or name != "Uniform"  # nobody draws there
]
SWEEP = Sweep(
    name="fast_readings",
    title="FAST's table 3 (CIFAR-10) under readings of what the paper leaves open",
    axes=("draw", "optimizer", "epochs", "participation", "q"),
    runs={key: run(*key) for key in KEYS},
    table=Table(
        rows=["draw", "optimizer", "epochs"],
        columns=["participation", "q"],
        statistic="last5",
        readings=["draw", "optimizer", "epochs"],
        source="FAST, table 3 (CIFAR-10)",
    ),
    paper={key: TABLE3[(*key[3:], 0.1)] for key in KEYS},
    notes=__doc__ + NOTES,
    scales=SCALES,
)
