"""SAFARI: does table 8 (MNIST) come out if the inputs are standardised?

Source: Yang et al., docs/papers.md#safari, table 8.

The choice, called a reading, is what the model sees: pixels scaled to [0, 1], or
standardised with the mean 0.1307 and the standard deviation 0.3081 of MNIST's training
images. All else is as in `experiments/safari/readings.py` with a server round of one
epoch: batch size 64, and classes that are spread as evenly as possible, with one spread
for all seeds. How the spread matters is the question of
`experiments/safari/readings_spread.py`.

Which statistic of the accuracy the paper prints is not a choice of the runs, so the
report compares several: among them `best`, the best accuracy over all rounds, and
`best5`, the best one that an evaluation of every fifth round sees. SAFARI says that it
partitions data as Li et al. do (docs/papers.md#li2020), and the public code of that
paper evaluates every fifth round.

A reading that is chosen by its distance to this table must be confirmed on tables that
had no say in the choice, such as tables 5 and 10.

Run it with `raysafl run experiments/safari/readings_inputs.py`. Its 48 entries with 5
seeds each take about 17 minutes of one core; with `--scale small` they take about 1
minute on two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Comparison
from experiments.safari.setting import BASE_RUNS, INPUTS, NOTES, SCALES, entry_run
from experiments.safari.table8_mnist import PRINTED
from experiments.tools.printed_tables import printed_numbers

TABLE8 = printed_numbers(PRINTED)
BASES = {
    name: BASE_RUNS["MNIST"].replace({"data.dataset": dataset})
    for name, dataset in INPUTS.items()
}
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="safari_readings_inputs",
        title="SAFARI's table 8 with standardised inputs, and with pixels in [0, 1]",
        axes=("inputs", "s", "method", "p"),
        runs={
            (inputs, s, method, p): entry_run(base, method, p=p, s=s)
            for inputs, base in BASES.items()
            for s, method, p in TABLE8
        },
        table=fl.Table(
            rows=["inputs", "s", "method"],
            columns=["p"],
            statistic="best5",
            also=["best", "final", "last10", "after_server"],
        ),
        notes=__doc__ + NOTES,
        scales=SCALES,
    ),
    readings=["inputs"],
    source="SAFARI, table 8 (MNIST)",
    paper={
        (inputs, *entry): number
        for inputs in INPUTS
        for entry, number in TABLE8.items()
    },
)
SWEEP = COMPARISON.sweep
