"""FAST: which choices for what the paper leaves open come nearest to table 3?

Source: FAST, docs/papers.md#fast, table 3, CIFAR-10 part.

Each combination of choices is called a reading. The readings differ in three things.
First, how a draw of the distribution becomes a client: by the distribution's
probability mass on the client's part of [0, 1] (`mass`), or the draws are the clients'
participation rates, by which ten clients are taken as by weights (`rates, ten`) or each
client takes part independently (`rates, free`). Second, what a client runs: one or five
local epochs of SGD, or of SGD with momentum 0.9, or one epoch of Adam, always at the
printed rate. Third, whose training accuracy changes q in adaptive FAST: that of the
cohort while it trains (`local`), or that of the new global model on the cohort's
samples (`cohort`) or on all clients' samples (`clients`). The tables run the reading
`mass`, five epochs of SGD and `clients`, which came out nearest.

The entries of a reading are uniform participation and, under Beta, no snapshots, half of
the rounds as snapshots, and adaptive FAST with lambda = 1 and 7. With `rates, free` and
Weibull, whose rates are near 1, about 95 of 100 clients would take part instead of the
printed 10 %. So that reading is tried for Beta alone, where about nine clients take
part.

Run it with `raysafl run experiments/fast/readings.py`. Its 41 entries with 3 seeds each
take about 9,200 hours of one core, so use a GPU; with `--scale small` they take about
10 minutes on two cores.
"""

import raysafl as fl
from experiments.fast.setting import NOTES, SCALES, entry_run
from experiments.tools.printed_tables import printed_numbers, printed_ratios

PRINTED = """
participation, q | 0.1
Uniform, 1       | 80.18+-0.6/0
Beta, Ada.(7)    | 76.83+-1.0/67.5
Beta, Ada.(1)    | 68.94+-4.0/96.6
Beta, 0.5        | 78.03+-1.3/50.7
Beta, 0          | 68.30+-0.9/100
"""
TABLE3 = printed_numbers(PRINTED)
RATIOS = printed_ratios(PRINTED)
COHORT_SIZES = {"rates, ten": 10, "rates, free": None}  # of the draws that are rates
TRAINING = {  # (optimizer, local epochs), and what it changes in a run of table 3
    ("SGD", 1): {"local.epochs": 1},
    ("SGD", 5): {},
    ("momentum", 1): {"local.epochs": 1, "local.momentum": 0.9},
    ("momentum", 5): {"local.momentum": 0.9},
    ("Adam", 1): {"local.epochs": 1, "local.optimizer": "adam"},
}
USUAL = ("momentum", 1)
MANY_STEPS = ("SGD", 5)
READING_AXES = ["draw", "optimizer", "epochs", "accuracy"]
READINGS = [
    *(("mass", *training, "local") for training in TRAINING),
    *((draw, *USUAL, "local") for draw in COHORT_SIZES),
    *(
        ("mass", *training, accuracy)
        for training in (USUAL, MANY_STEPS)
        for accuracy in ("cohort", "clients")
    ),
]


def reading_run(draw, optimizer, epochs, accuracy, participation, q):
    """Return the run of one entry of table 3 under one reading."""
    base = entry_run("CIFAR-10", participation, q, 0.1).replace(
        TRAINING[optimizer, epochs]
    )
    has_snapshots = isinstance(base.participation, fl.Snapshot)
    if has_snapshots and base.participation.adapt is not None:
        base = base.replace({"participation.accuracy": accuracy})
    if draw == "mass" or participation == "Uniform":
        return base
    rates = fl.ArbitraryRates(dist=fl.Beta(), m=COHORT_SIZES[draw])
    return base.replace(
        {"participation.base" if has_snapshots else "participation": rates}
    )


def differs_from_usual(draw, accuracy, participation, q):
    """Return whether an entry's run depends on a reading's draw and accuracy at all.

    Uniform participation does not depend on the draw, and only adaptive FAST depends on
    the accuracy. Other entries would repeat the runs of the usual draw and accuracy.
    """
    if accuracy != "local":
        return isinstance(q, str)
    return draw == "mass" or participation != "Uniform"


ENTRIES = [
    (*reading, name, q)
    for reading in READINGS
    for name, q, _ in TABLE3
    if differs_from_usual(reading[0], reading[3], name, q)
]
SWEEP = fl.Sweep(
    name="fast_readings",
    title="FAST's table 3 (CIFAR-10) under readings of what the paper leaves open",
    axes=(*READING_AXES, "participation", "q"),
    runs={key: reading_run(*key) for key in ENTRIES},
    table=fl.Table(
        rows=READING_AXES,
        columns=["participation", "q"],
        statistic="last5",
        readings=READING_AXES,
        also=["arbitrary_ratio"],
        source="FAST, table 3 (CIFAR-10)",
    ),
    paper={key: TABLE3[(*key[4:], 0.1)] for key in ENTRIES},
    more={"arbitrary_ratio": {key: RATIOS[(*key[4:], 0.1)] for key in ENTRIES}},
    notes=__doc__ + NOTES,
    scales=SCALES,
)
