"""SAFARI: which reading of a server round is nearest to table 3 (MNIST), where n0 varies?

With n0 = 1,000, as in the other tables, an epoch over D0 and a fixed number of steps can hardly be
told apart (safari_readings.py). Readings: one epoch over D0; 16 steps of 64 whatever n0 is, which
is an epoch of 1,000 samples; 92, which is a client's epoch. Classes are spread as evenly as
possible with one spread for all seeds, or dealt in shards (McMahan et al. 2017) anew for each
seed. s = 4.
"""

import raysafl as fl
from experiments.safari.setting import MNIST, NOTES, SCALES, cell
from experiments.tools.printed_tables import printed

TABLE3 = printed("""
n0   | 2     1
50   | 4.82  16.65
100  | 6.87  20.26
500  | 9.16  29.82
1000 | 10.69 31.07
""")
ROUNDS = {
    "1 epoch": fl.LocalTraining(lr=0.1, batch_size=64, epochs=1),
    "16 steps": fl.LocalTraining(lr=0.1, batch_size=64, steps=16),
    "92 steps": fl.LocalTraining(lr=0.1, batch_size=64, steps=92),
}
SPREADS = {"even, one": (fl.ClassesPerClient, 0), "shards, per seed": (fl.Shards, None)}


def run(server_round, spread, n0, p):
    partition, seed = SPREADS[spread]
    base = MNIST.replace({"data.partition": partition(p=p), "data.seed": seed})
    if server_round == "none":
        return cell(base, "FedAvg", p=p)
    changed = cell(base, "SAFARI", p=p, n0=n0)
    return changed.replace(algorithm=fl.SAFARI(client_prob=0.8, server_update=ROUNDS[server_round]))


def smoke(run):
    """Two rounds, in which 16 and 92 steps remain two readings: 1 and 9."""
    server = getattr(run.algorithm, "server_update", None)
    steps = {"algorithm.server_update.steps": server.steps // 10} if server and server.steps else {}
    return SCALES["smoke"](run).replace(steps)


CELLS = [(kind, spread, *key) for kind in ROUNDS for spread in SPREADS for key in TABLE3]
BASELINES = [("none", spread, 0, p) for spread in SPREADS for p in (2, 1)]
SWEEP = fl.Sweep(
    name="safari_readings_n0",
    title="SAFARI's table 3 (improvements over FedAvg) under readings of a server round",
    axes=("server round", "spread", "n0", "p"),
    runs={key: run(*key) for key in BASELINES + CELLS},
    table=fl.Table(
        rows=["server round", "spread", "n0"],
        columns=["p"],
        statistic="best",
        also=["final", "last10"],
        minus={"server round": "none", "n0": 0},
        readings=["server round", "spread"],
        source="SAFARI, table 3 (MNIST)",
    ),
    paper={key: TABLE3[key[2:]] for key in CELLS},
    notes=__doc__ + NOTES,
    scales=SCALES | {"smoke": smoke},
)
