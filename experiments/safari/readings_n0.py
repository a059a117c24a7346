"""SAFARI: which reading of a server round comes nearest to table 3 (MNIST)?

Source: Yang et al., docs/papers.md#safari, table 3.

Table 3 varies the size n0 of the server's dataset D0. With n0 = 1,000, as in the other
tables, an epoch over D0 and a fixed number of steps give nearly the same accuracy
(`experiments/safari/readings.py`). Here a server round is one epoch over D0; or 16
steps with batch size 64 whatever n0 is, which is an epoch of 1,000 samples; or 92
steps, which is a client's epoch. The classes are spread as evenly as possible, with one
spread for all seeds, or dealt in shards (McMahan et al. 2017, docs/papers.md#fedavg)
anew for each seed. Four of ten clients never take part (s = 4).

Run it with `raysafl run experiments/safari/readings_n0.py`. Its 52 entries with 5 seeds
each take about 20 minutes of one core; with `--scale small` they take about 1 minute on
two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Comparison
from experiments.safari.setting import BASE_RUNS, INPUTS, NOTES, SCALES, entry_run
from experiments.tools.printed_tables import printed_numbers

TABLE3 = printed_numbers("""
n0   | 2     1
50   | 4.82  16.65
100  | 6.87  20.26
500  | 9.16  29.82
1000 | 10.69 31.07
""")
SERVER_ROUNDS = {
    "1 epoch": fl.LocalTraining(lr=0.1, batch_size=64, epochs=1),
    "16 steps": fl.LocalTraining(lr=0.1, batch_size=64, steps=16),
    "92 steps": fl.LocalTraining(lr=0.1, batch_size=64, steps=92),
}
SPREADS = {  # partition, and seed of the data (None: one per replicate)
    "even, one": (fl.ClassesPerClient, 0),
    "shards, per seed": (fl.data.Shards, None),
}


def reading_run(server_round, spread, n0, p):
    """Return the run of one entry of table 3 under one reading, or of its baseline."""
    partition, seed = SPREADS[spread]
    base = BASE_RUNS["MNIST"].replace(
        {
            "data.dataset": INPUTS["0 to 1"],
            "data.partition": partition(p=p),
            "data.seed": seed,
        }
    )
    if server_round == "none":
        return entry_run(base, "FedAvg", p=p)
    server_update = SERVER_ROUNDS[server_round]
    return entry_run(base, "SAFARI", p=p, n0=n0).replace(
        algorithm=fl.SAFARI(client_prob=0.8, server_update=server_update)
    )


def smoke(run):
    """Return two rounds of a run; 16 and 92 server steps become 1 and 9."""
    server_update = getattr(run.algorithm, "server_update", None)
    run = SCALES["smoke"](run)
    if not (server_update and server_update.steps):
        return run
    return run.replace({"algorithm.server_update.steps": server_update.steps // 10})


ENTRIES = [
    (server_round, spread, *key)
    for server_round in SERVER_ROUNDS
    for spread in SPREADS
    for key in TABLE3
]
BASELINES = [("none", spread, 0, p) for spread in SPREADS for p in (2, 1)]
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_readings_n0",
        title="SAFARI's table 3 (improvements over FedAvg) under readings of a server round",
        axes=("server round", "spread", "n0", "p"),
        runs={key: reading_run(*key) for key in BASELINES + ENTRIES},
        table=fl.Table(
            rows=["server round", "spread", "n0"],
            columns=["p"],
            statistic="best",
            also=["final", "last10"],
        ),
        notes=__doc__ + NOTES,
        scales=SCALES | {"smoke": smoke},
    ),
    minus={"server round": "none", "n0": 0},
    readings=["server round", "spread"],
    source="SAFARI, table 3 (MNIST)",
    paper={key: TABLE3[key[2:]] for key in ENTRIES},
)
SWEEP = COMPARISON.sweep
