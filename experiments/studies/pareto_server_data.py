"""Accuracy against server data: which method makes most of n0 samples?

The setting is SAFARI's (docs/papers.md#safari): ten clients of MNIST, of which four
never take part, five clients a round, logistic regression, 150 rounds of one local
epoch with batch size 64 at rate 0.1. Each client holds one or two classes (p). Compared
are SAFARI with a fifth or half of the rounds at the server; FSL with its defaults; data
sharing, in which every client also holds the server's dataset D0; and SGD on D0 alone,
without any client. FedAvg needs no D0. The accuracy is the mean of the last ten rounds,
so that no method gains by its best moment. The bytes that were sent are in
`runs.parquet`.

Run it with `raysafl run experiments/studies/pareto_server_data.py`. Its 82 entries with 6
seeds each take about 25 minutes of one core; with `--scale small` they take about 1
minute on two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Claim, Comparison
from experiments.safari.setting import BASE_RUNS, SCALES, entry_run

# Classes are spread as evenly as possible. Each seed has a partition and a D0 of its own.
BASE = BASE_RUNS["MNIST"].replace({"data.seed": None, "replicates": 6})
EPOCH = fl.LocalTraining(lr=0.1, batch_size=64, epochs=1)
METHODS = {
    "server alone": {"algorithm": fl.algorithms.ServerOnly(server_update=EPOCH)},
    "data sharing": {"data.share": 1.0},
    "SAFARI, q = 0.8": {"algorithm": fl.SAFARI(client_prob=0.8, server_update=EPOCH)},
    "SAFARI, q = 0.5": {"algorithm": fl.SAFARI(client_prob=0.5, server_update=EPOCH)},
    "FSL": {"algorithm": fl.FSL(inner=fl.FedAvg(), gamma=1.0)},
}
SERVER_SIZES = (20, 50, 100, 200, 500, 1000, 2000, 5000)
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="pareto_server_data",
        title="Accuracy against server data, MNIST, 4 of 10 clients never come",
        axes=("p", "method", "n0"),
        runs={(p, "FedAvg", 0): entry_run(BASE, "FedAvg", p) for p in (1, 2)}
        | {
            (p, name, n0): entry_run(BASE, "FedAvg", p).replace(
                {**changes, "data.server.n0": n0}
            )
            for p in (1, 2)
            for name, changes in METHODS.items()
            for n0 in SERVER_SIZES
        },
        table=fl.Table(
            rows=["p", "method"],
            columns=["n0"],
            panels=["p"],
            statistic="last10",
            also=["final", "best", "total_bytes", "total_steps"],
        ),
        notes=__doc__,
        scales=SCALES,
    ),
    claims=[
        Claim(
            text="SAFARI's premise: more server data help (50, 500, 5000)",
            order=[{"n0": n0} for n0 in (5000, 500, 50)],
            where={"method": "SAFARI, q = 0.8"},
        ),
        Claim(
            text="FSL: server learning beats sharing the same data with the clients",
            order=[{"method": "FSL"}, {"method": "data sharing"}],
        ),
    ],
)
SWEEP = COMPARISON.sweep
