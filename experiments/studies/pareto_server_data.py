"""Accuracy against the size of the server's data: which method makes most of n0 samples?

MNIST, logistic regression, SAFARI's setting (10 clients, 4 never come, 5 a round, 150 rounds, one
epoch of batch 64, rate 0.1) with one or two classes per client. SAFARI with half or a fifth of the
rounds at the server, FSL with its defaults, data sharing (D0 appended to every client), and SGD on
D0 alone as the floor; FedAvg needs no D0. Mean of the last ten rounds, so that no method gains by
its best moment; bytes are in `runs.parquet`.
"""

import raysafl as fl
from experiments.safari.setting import MNIST as BASE
from experiments.safari.setting import SCALES, cell

EPOCH = fl.LocalTraining(lr=0.1, batch_size=64, epochs=1)
METHODS = {
    "server alone": {"algorithm": fl.ServerOnly(server_update=EPOCH)},
    "data sharing": {"data.share": 1.0},
    "SAFARI, q = 0.8": {"algorithm": fl.SAFARI(client_prob=0.8, server_update=EPOCH)},
    "SAFARI, q = 0.5": {"algorithm": fl.SAFARI(client_prob=0.5, server_update=EPOCH)},
    "FSL": {"algorithm": fl.FSL(inner=fl.FedAvg(), gamma=1.0)},
}
SIZES = (20, 50, 100, 200, 500, 1000, 2000, 5000)
SWEEP = fl.Sweep(
    name="pareto_server_data",
    title="Accuracy against server data, MNIST, 4 of 10 clients never come",
    axes=("p", "method", "n0"),
    runs={(p, "FedAvg", 0): cell(BASE, "FedAvg", p) for p in (1, 2)}
    | {
        (p, name, n0): cell(BASE, "FedAvg", p).replace({**changes, "data.server.n0": n0})
        for p in (1, 2)
        for name, changes in METHODS.items()
        for n0 in SIZES
    },
    table=fl.Table(
        rows=["p", "method"],
        columns=["n0"],
        panels=["p"],
        statistic="last10",
        also=["final", "best", "total_bytes", "total_steps"],
    ),
    claims=[
        fl.Claim(
            text="SAFARI's premise: more server data help (50, 500, 5000)",
            order=[{"n0": n0} for n0 in (5000, 500, 50)],
            where={"method": "SAFARI, q = 0.8"},
        ),
        fl.Claim(
            text="FSL: server learning beats sharing the same data with the clients",
            order=[{"method": "FSL"}, {"method": "data sharing"}],
        ),
    ],
    notes=__doc__,
    scales=SCALES,
)
