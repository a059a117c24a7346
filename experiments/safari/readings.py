"""SAFARI: which reading of what the paper leaves open is nearest to table 8 (MNIST)?

Readings: what a server round is (one step as Algorithm 1 prints, as many steps as a client's
epoch, one epoch over D0, five); how classes are spread (as evenly as possible, in shards dealt at
random as in McMahan et al. 2017, drawn by each client on its own as the letter of appendix B.1 has
it), where each seed has a spread of its own, so that the absent clients vary too, or one spread
serves all seeds; D0 drawn uniformly or equally from each class. Which accuracy is printed is told
by the report, which compares every statistic. FedAvg has no server round.
"""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES
from experiments.tools.printed_tables import printed

TABLE8 = printed("""
s, method | 5           2           1
0, FedAvg | 89.70+-0.23 86.04+-0.61 84.60+-0.99
0, SAFARI | 91.08+-0.13 89.42+-0.17 89.10+-0.24
4, FedAvg | 88.76+-0.13 77.82+-0.22 57.09+-0.04
4, SAFARI | 90.41+-0.17 88.27+-0.21 88.06+-0.24
""")
ROUNDS = {
    "1 step": fl.LocalTraining(lr=0.1, batch_size=64, steps=1),
    "K steps": fl.LocalTraining(lr=0.1, batch_size=64, steps=92),  # 5,900 samples of a client / 64
    "1 epoch": fl.LocalTraining(lr=0.1, batch_size=64, epochs=1),
    "5 epochs": fl.LocalTraining(lr=0.1, batch_size=64, epochs=5),
}
SPREADS = {
    "even, one": (fl.ClassesPerClient, 0),
    "even, per seed": (fl.ClassesPerClient, None),
    "shards, per seed": (fl.Shards, None),
    "independent, per seed": (fl.IndependentClasses, None),
}
SERVERS = {"uniform": fl.IidServer(n0=1000), "per class": fl.StratifiedServer(n0=1000)}


def run(server_round, spread, server, s, method, p):
    partition, seed = SPREADS[spread]
    changed = MNIST.replace(
        {
            "data.partition": partition(p=p),
            "data.seed": seed,
            "data.server": SERVERS[server],
            "participation": fl.Absent(s=s, m=5),
        }
    )
    if method == "FedAvg":
        return changed
    return changed.replace(algorithm=fl.SAFARI(client_prob=0.8, server_update=ROUNDS[server_round]))


READINGS = [
    *((kind, spread, "uniform") for kind in ROUNDS for spread in SPREADS),
    *(("1 epoch", spread, "per class") for spread in ("even, one", "shards, per seed")),
]
CELLS = [
    (*reading, s, "SAFARI", p)
    for reading in READINGS
    for s, method, p in TABLE8
    if method == "SAFARI"
] + [("none", spread, "uniform", s, "FedAvg", p) for spread in SPREADS for s, _, p in TABLE8]
SWEEP = fl.Sweep(
    name="safari_readings",
    title="SAFARI's table 8 under readings of what the paper leaves open",
    axes=("server round", "spread", "D0", "s", "method", "p"),
    runs={key: run(*key) for key in dict.fromkeys(CELLS)},
    table=fl.Table(
        rows=["method", "server round", "spread", "D0"],
        columns=["s", "p"],
        statistic="best",
        readings=["server round", "spread", "D0"],
        source="SAFARI, table 8 (MNIST)",
    ),
    paper={key: TABLE8[key[3:]] for key in CELLS},
    notes=__doc__ + NOTES,
    scales=SCALES,
)
