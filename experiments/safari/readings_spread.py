"""SAFARI: which spread of the classes over the clients explains table 8 (MNIST)?

Source: Yang et al., docs/papers.md#safari, tables 8 and 10.

With standardised inputs and the best accuracy of every fifth round, FedAvg comes out
with p = 1 and p = 10 classes per client, whose spreads are all alike. This file is
about p = 2 and p = 5. A kind of spread says by which rule the clients get their
classes: in shards that are dealt at random (McMahan et al. 2017, docs/papers.md#fedavg;
`shards`); equally many clients for each class, as one client after the other draws them
(the public code of Li et al. 2020, docs/papers.md#li2020; `dealt`); or as evenly as
possible, so that the first clients hold all classes (`even`). One outcome of such a
rule is called a deal. `experiments/safari/readings.py` has a fourth kind, in which each
client draws its classes independently. It is far off.

Each seed has a deal of its own here: the deal of seed k is the one that all seeds of a
run with `data.seed = k` share. The printed spreads over seeds are small, so the paper's
seeds seem to share one deal. The report therefore shows how much the deals of a kind
differ, and `docs/reproduction.md` gives the place of each printed number among them. The
entries are those of FedAvg in table 8 (for `dealt` without s = 2) and, for `shards` alone,
the entries of table 10 with m = 1 and 2 clients a round, which depend on the deal most.
They had no say in the choice of the kind.

Run it with `raysafl run experiments/safari/readings_spread.py`. Its 20 entries with 8 to
32 seeds each take about 20 minutes of one core; with `--scale small` they take about 1
minute on two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Comparison
from experiments.safari import table8_mnist, table10_mnist
from experiments.safari.setting import BASE_RUNS, INPUTS, NOTES, SCALES, entry_run
from experiments.tools.printed_tables import printed_numbers

TABLE8 = printed_numbers(table8_mnist.PRINTED)
TABLE10 = printed_numbers(table10_mnist.PRINTED)
SPREADS = {  # the rule, and the number of its deals
    "shards": (fl.data.Shards, 32),
    "dealt": (fl.data.DealtClasses, 8),
    "even": (fl.ClassesPerClient, 8),
}
PRINTED = {  # (s, m, p): accuracy of FedAvg
    (s, 5, p): number
    for (s, method, p), number in TABLE8.items()
    if method == "FedAvg" and p in (2, 5)
}
CONFIRMING = {  # four clients are absent in table 10
    (4, m, p): TABLE10[m, "FedAvg", p] for m in (1, 2) for p in (2, 5)
}


def reading_run(spread, s, m, p):
    """Return the run of one entry of FedAvg, with another deal for each seed."""
    partition, deals = SPREADS[spread]
    base = BASE_RUNS["MNIST"].replace(
        {
            "data.dataset": INPUTS["standardised"],
            "data.partition": partition(p=p),
            "data.seed": None,
            "replicates": deals,
        }
    )
    return entry_run(base, "FedAvg", p=p, s=s, m=m)


PLACES = {
    "shards": PRINTED | CONFIRMING,
    "dealt": {entry: number for entry, number in PRINTED.items() if entry[0] != 2},
    "even": PRINTED,
}
ENTRIES = {
    (spread, *entry): number
    for spread, places in PLACES.items()
    for entry, number in places.items()
}
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_readings_spread",
        title="SAFARI's FedAvg on MNIST under kinds of spread, with a deal for each seed",
        axes=("spread", "s", "m", "p"),
        runs={key: reading_run(*key) for key in ENTRIES},
        table=fl.Table(
            rows=["spread", "s", "m"],
            columns=["p"],
            statistic="best5",
            also=["best"],
        ),
        notes=__doc__ + NOTES,
        scales=SCALES,
    ),
    readings=["spread"],
    source="SAFARI, tables 8 and 10 (MNIST)",
    paper=ENTRIES,
)
SWEEP = COMPARISON.sweep
