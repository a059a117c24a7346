"""FAST: is the nearest reading of table 3 still near after more rounds?

Source: FAST, docs/papers.md#fast, table 3, CIFAR-10 part.

`experiments/fast/readings.py` compares choices for what the paper leaves open. With the
nearest one, clients take part with the distribution's probability mass and run five
local epochs of plain SGD, and q follows the training accuracy of the global model over
all clients. This file runs its five entries alone, so that they can have more rounds:
scale `long` is `small` for 3,000 rounds with one seed. It is tested every 50 rounds, and
the rate is halved after half of the rounds, as the paper does.

Run it with `raysafl run experiments/fast/readings_long.py`. Its 5 entries with 3 seeds
each take about 2,800 hours of one core, so use a GPU; with `--scale long` they take
about 2 hours on two cores, and with `--scale small` about 2 minutes.
"""

import raysafl as fl
from experiments.fast.readings import RATIOS, TABLE3, reading_run
from experiments.fast.setting import NOTES, SCALES, small

NEAREST = ("mass", "SGD", 5)
ENTRIES = {(name, q): (name, q, alpha) for name, q, alpha in TABLE3}


def long(run):
    """Return scale `small` for 3,000 rounds, with one seed and the paper's decay."""
    return small(run).replace(
        {
            "rounds": 3000,
            "replicates": 1,
            "eval_every": 50,
            "local.milestones": [1500],
        }
    )


SWEEP = fl.Sweep(
    name="fast_readings_long",
    title="FAST's table 3 (CIFAR-10) under the nearest reading, for more rounds",
    axes=("participation", "q"),
    runs={
        (name, q): reading_run(
            *NEAREST, "clients" if isinstance(q, str) else "local", name, q
        )
        for name, q in ENTRIES
    },
    table=fl.Table(
        rows=["participation", "q"],
        statistic="last5",
        also=["last5_std", "best", "arbitrary_ratio"],
        source="FAST, table 3 (CIFAR-10)",
    ),
    paper={key: TABLE3[entry] for key, entry in ENTRIES.items()},
    more={"arbitrary_ratio": {key: RATIOS[entry] for key, entry in ENTRIES.items()}},
    notes=__doc__ + NOTES,
    scales=SCALES | {"long": long},
)
