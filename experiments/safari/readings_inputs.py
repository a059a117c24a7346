"""SAFARI: does table 8 (MNIST) come out if the inputs are standardised?

Source: Yang et al., docs/papers.md#safari, table 8.

Like `experiments/safari/readings.py`, this file tries choices, called readings, for
what the paper leaves open, and ranks them by their distance to the printed numbers. It
adds one that was not tried there, and all of its choices are combined with each other.

First, what the model sees: pixels scaled to [0, 1], or standardised with the mean
0.1307 and the standard deviation 0.3081 of MNIST's training images. Second, the batch
size of clients and server: 64, which the paper prints, or 32. Third, what a server
round is: one step, as Algorithm 1 prints; one epoch over the server's dataset D0; or as
many steps as a client's epoch has. Fourth, how the classes are spread over the clients:
as evenly as possible, with one spread for all seeds; or anew for each seed, in shards
that are dealt at random (McMahan et al. 2017, docs/papers.md#fedavg) or drawn by each
client independently, as appendix B.1 says literally. FedAvg has no server round.

Which statistic of the accuracy the paper prints is not a choice of the runs, so the
report compares several: among them `best`, the best accuracy over all rounds, and
`best5`, the best one that an evaluation of every fifth round sees. SAFARI says that it
partitions data as Li et al. (2020, "On the Convergence of FedAvg on Non-IID Data") do,
and the public code of that paper evaluates every fifth round.

A reading that is chosen by its distance to this table must be confirmed on tables that
had no say in the choice, such as tables 5 and 10.

Run it with `raysafl run experiments/safari/readings_inputs.py`. Its 576 cells with 5
seeds each take about 4 hours of one core, which is an estimate from two of its cells;
with `--scale small` they take about 5 minutes on two cores.
"""

from itertools import product

import raysafl as fl
from experiments.safari.readings import SPREADS
from experiments.safari.setting import INPUTS, NOTES, SCALES, cell_run
from experiments.safari.table8_mnist import PRINTED
from experiments.tools.printed_tables import printed_numbers

TABLE8 = printed_numbers(PRINTED)
BATCH_SIZES = [64, 32]
SERVER_ROUNDS = ["1 step", "1 epoch", "K steps"]
CHOSEN_SPREADS = ["even, one", "shards, per seed", "independent, per seed"]
# A client holds 5,900 samples.
CLIENT_SAMPLES = 5900


def server_update(server_round, batch_size):
    """Return how the server trains in its rounds."""
    length = {
        "1 step": {"steps": 1},
        "1 epoch": {"epochs": 1},
        "K steps": {"steps": CLIENT_SAMPLES // batch_size},
    }
    return fl.LocalTraining(lr=0.1, batch_size=batch_size, **length[server_round])


def reading_run(inputs, batch_size, server_round, spread, s, method, p):
    """Return the run of one cell of table 8 under one reading."""
    partition, seed = SPREADS[spread]
    run = cell_run("MNIST", method, p=p, s=s).replace(
        {
            "data.dataset": INPUTS[inputs],
            "data.partition": partition(p=p),
            "data.seed": seed,
            "local.batch_size": batch_size,
        }
    )
    if method == "FedAvg":
        return run
    return run.replace(
        {"algorithm.server_update": server_update(server_round, batch_size)}
    )


def smoke(run):
    """Return two rounds of a run, with batches of 16 and 8 samples for 64 and 32."""
    batch_size = run.local.batch_size // 4
    changes = {"local.batch_size": batch_size}
    if run.algorithm.uses_server_data:
        changes["algorithm.server_update.batch_size"] = batch_size
    return SCALES["smoke"](run).replace(changes)


CELLS = [
    (inputs, batch_size, server_round, spread, s, method, p)
    for inputs, batch_size, spread, (s, method, p) in product(
        INPUTS, BATCH_SIZES, CHOSEN_SPREADS, TABLE8
    )
    for server_round in (["none"] if method == "FedAvg" else SERVER_ROUNDS)
]
SWEEP = fl.Sweep(
    name="safari_readings_inputs",
    title="SAFARI's table 8 with standardised inputs, under other open choices",
    axes=("inputs", "batch size", "server round", "spread", "s", "method", "p"),
    runs={key: reading_run(*key) for key in CELLS},
    table=fl.Table(
        rows=["method", "inputs", "batch size", "server round", "spread"],
        columns=["s", "p"],
        statistic="best",
        also=["best5", "final", "last10", "after_server"],
        readings=["inputs", "batch size", "server round", "spread"],
        source="SAFARI, table 8 (MNIST)",
    ),
    paper={key: TABLE8[key[4:]] for key in CELLS},
    notes=__doc__ + NOTES,
    scales=SCALES | {"smoke": smoke},
)
