"""SAFARI and FAST together: server rounds, enforced rounds, or both?

MNIST, logistic regression, 20 clients with one class each, five clients a round, 150
rounds, batch size 64, rate 0.1. Participation follows Beta(1, 10), under which the last
clients hardly ever take part. The rows vary the probability that a round is a snapshot
(FAST, docs/papers.md#fast), in which the cohort is drawn uniformly. The columns vary
the probability that a round is the server's (1 - q of SAFARI, docs/papers.md#safari),
with n0 = 100 or 1,000 samples at the server. A snapshot that falls on a server round
involves no client and is not counted.

Run it with `raysafl run experiments/studies/safari_and_fast.py`. Its 40 entries with 6
seeds each take about 7 minutes of one core; with `--scale small` they take about 1
minute on two cores.
"""

import itertools

import raysafl as fl
from experiments.fast.setting import participation_policy
from experiments.papercheck.comparison import Claim, Comparison
from experiments.safari.setting import BASE_RUNS

EPOCH = fl.LocalTraining(lr=0.1, batch_size=64, epochs=1)
BASE = BASE_RUNS["MNIST"].replace(
    {
        "data.clients": 20,
        "data.partition.p": 1,
        "data.seed": None,  # each seed has a partition and a D0 of its own
        "replicates": 6,
    }
)
SERVER_PROBS = (0.0, 0.1, 0.2, 0.5)  # of a round at the server
SNAPSHOT_PROBS = (0, 0.1, 0.25, 0.5, 1)
SERVER_SIZES = (100, 1000)


def entry_run(n0, snapshot_prob, server_prob):
    """Return the run of one entry; without server rounds it is FedAvg."""
    run = BASE.replace(
        {
            "data.server.n0": n0,
            "participation": participation_policy("Beta", snapshot_prob, 5),
        }
    )
    if server_prob == 0:
        return run
    return run.replace(
        algorithm=fl.SAFARI(client_prob=1 - server_prob, server_update=EPOCH)
    )


COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_and_fast",
        title="Server rounds (SAFARI) and snapshots (FAST) under Beta(1, 10), MNIST, 20 "
        "clients",
        axes=("n0", "snapshots", "server rounds"),
        runs={
            entry: entry_run(*entry)
            for entry in itertools.product(SERVER_SIZES, SNAPSHOT_PROBS, SERVER_PROBS)
        },
        table=fl.Table(
            rows=["n0", "snapshots"],
            columns=["server rounds"],
            panels=["n0"],
            statistic="last10",
            also=["final", "best", "arbitrary_ratio", "total_snapshots", "total_bytes"],
        ),
        notes=__doc__,
        scales={"small": lambda run: run.replace(rounds=30, replicates=2)},
    ),
    claims=[
        Claim(
            text="with n0 = 1,000, a fifth of server rounds beats a tenth of snapshots",
            order=[
                {"snapshots": 0, "server rounds": 0.2},
                {"snapshots": 0.1, "server rounds": 0.0},
            ],
            where={"n0": 1000},
        ),
        Claim(
            text="both together are better than server rounds alone (a fifth of each)",
            order=[
                {"snapshots": 0.25, "server rounds": 0.2},
                {"snapshots": 0, "server rounds": 0.2},
            ],
        ),
    ],
)
SWEEP = COMPARISON.sweep
