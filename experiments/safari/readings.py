"""SAFARI: which choices for what the paper leaves open come nearest to table 8 (MNIST)?

Source: Yang et al., docs/papers.md#safari, table 8.

Each combination of choices is called a reading. The readings differ in three things.
First, what a server round is: one step, as Algorithm 1 prints; as many steps as a
client's epoch has; one epoch over the server's dataset D0; or five. Second, how the
classes are spread over the clients: as evenly as possible; in shards that are dealt at
random (McMahan et al. 2017, docs/papers.md#fedavg); or drawn by each client
independently, as appendix B.1 says literally. One spread serves all seeds, or each seed
has its own, so that the classes of the absent clients vary too. Third, whether D0 is
drawn uniformly or with equally many samples of each class.

Which statistic of the accuracy the paper prints is not a reading: the report compares
all of them. FedAvg has no server round. The report ranks the readings by their distance
to the printed numbers.

Run it with `raysafl run experiments/safari/readings.py`. Its 132 entries with 5 seeds
each take about 31 minutes of one core; with `--scale small` they take about 1 minute on
two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Comparison
from experiments.safari.setting import BASE_RUNS, INPUTS, NOTES, SCALES
from experiments.tools.printed_tables import printed_numbers

TABLE8 = printed_numbers("""
s, method | 5           2           1
0, FedAvg | 89.70+-0.23 86.04+-0.61 84.60+-0.99
0, SAFARI | 91.08+-0.13 89.42+-0.17 89.10+-0.24
4, FedAvg | 88.76+-0.13 77.82+-0.22 57.09+-0.04
4, SAFARI | 90.41+-0.17 88.27+-0.21 88.06+-0.24
""")
SERVER_ROUNDS = {
    "1 step": fl.LocalTraining(lr=0.1, batch_size=64, steps=1),
    # A client holds 5,900 samples, which is 92 batches of 64.
    "K steps": fl.LocalTraining(lr=0.1, batch_size=64, steps=92),
    "1 epoch": fl.LocalTraining(lr=0.1, batch_size=64, epochs=1),
    "5 epochs": fl.LocalTraining(lr=0.1, batch_size=64, epochs=5),
}
SPREADS = {  # partition, and seed of the data (None: one per replicate)
    "even, one": (fl.ClassesPerClient, 0),
    "even, per seed": (fl.ClassesPerClient, None),
    "shards, per seed": (fl.data.Shards, None),
    "independent, per seed": (fl.data.IndependentClasses, None),
}
SERVERS = {
    "uniform": fl.IidServer(n0=1000),
    "per class": fl.data.StratifiedServer(n0=1000),
}


def reading_run(server_round, spread, server, s, method, p):
    """Return the run of one entry of table 8 under one reading."""
    partition, seed = SPREADS[spread]
    run = BASE_RUNS["MNIST"].replace(
        {
            "data.dataset": INPUTS["0 to 1"],
            "data.partition": partition(p=p),
            "data.seed": seed,
            "data.server": SERVERS[server],
            "participation": fl.Absent(s=s, m=5),
        }
    )
    if method == "FedAvg":
        return run
    server_update = SERVER_ROUNDS[server_round]
    return run.replace(
        algorithm=fl.SAFARI(client_prob=0.8, server_update=server_update)
    )


READINGS = [
    *(
        (server_round, spread, "uniform")
        for server_round in SERVER_ROUNDS
        for spread in SPREADS
    ),
    *(("1 epoch", spread, "per class") for spread in ("even, one", "shards, per seed")),
]
SAFARI_ENTRIES = [
    (*reading, s, "SAFARI", p)
    for reading in READINGS
    for s, method, p in TABLE8
    if method == "SAFARI"
]
FEDAVG_ENTRIES = [
    ("none", spread, "uniform", s, "FedAvg", p)
    for spread in SPREADS
    for s, _, p in TABLE8
]
ENTRIES = SAFARI_ENTRIES + FEDAVG_ENTRIES
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_readings",
        title="SAFARI's table 8 under readings of what the paper leaves open",
        axes=("server round", "spread", "D0", "s", "method", "p"),
        runs={key: reading_run(*key) for key in dict.fromkeys(ENTRIES)},
        table=fl.Table(
            rows=["method", "server round", "spread", "D0"],
            columns=["s", "p"],
            statistic="best",
        ),
        notes=__doc__ + NOTES,
        scales=SCALES,
    ),
    readings=["server round", "spread", "D0"],
    source="SAFARI, table 8 (MNIST)",
    paper={key: TABLE8[key[3:]] for key in ENTRIES},
)
SWEEP = COMPARISON.sweep
