"""SAFARI and FAST together: server rounds, enforced rounds, or both?

MNIST, logistic regression, 20 clients with one class each, five a round, 150 rounds, batch 64, rate
0.1. Under Beta(1, 10) the last clients nearly never come. Down: with which probability a round is a
snapshot (FAST). Across: with which probability it is the server's (1 - q of SAFARI), with n0 = 100
or 1,000 samples there. A snapshot in a server round enforces nobody and is not counted.
"""

import raysafl as fl
from experiments.fast.setting import policy
from experiments.safari.setting import MNIST

EPOCH = fl.LocalTraining(lr=0.1, batch_size=64, epochs=1)
BASE = MNIST.replace({"data.clients": 20, "data.partition.p": 1})
SERVER, SNAPSHOTS, SIZES = (0.0, 0.1, 0.2, 0.5), (0, 0.1, 0.25, 0.5, 1), (100, 1000)


def run(n0, snapshots, server):
    changed = BASE.replace({"data.server.n0": n0, "participation": policy("Beta", snapshots, 5)})
    safari = fl.SAFARI(client_prob=1 - server, server_update=EPOCH)
    return changed.replace(algorithm=safari if server else fl.FedAvg())


SWEEP = fl.Sweep(
    name="safari_and_fast",
    title="Server rounds (SAFARI) and snapshots (FAST) under Beta(1, 10), MNIST, 20 clients",
    axes=("n0", "snapshots", "server rounds"),
    runs={
        (n0, snapshots, server): run(n0, snapshots, server)
        for n0 in SIZES
        for snapshots in SNAPSHOTS
        for server in SERVER
    },
    table=fl.Table(
        rows=["n0", "snapshots"],
        columns=["server rounds"],
        panels=["n0"],
        statistic="last10",
        also=["final", "best", "arbitrary_ratio", "total_snapshots", "total_bytes"],
    ),
    claims=[
        fl.Claim(
            text="with n0 = 1,000, a fifth of server rounds beats a tenth of snapshots",
            order=[
                {"snapshots": 0, "server rounds": 0.2},
                {"snapshots": 0.1, "server rounds": 0.0},
            ],
            where={"n0": 1000},
        ),
        fl.Claim(
            text="both together are better than server rounds alone (a fifth of each)",
            order=[
                {"snapshots": 0.25, "server rounds": 0.2},
                {"snapshots": 0, "server rounds": 0.2},
            ],
        ),
    ],
    notes=__doc__,
    scales={"small": lambda run: run.replace(rounds=30, replicates=2)},
)
