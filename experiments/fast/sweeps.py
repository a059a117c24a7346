"""Build the sweeps of FAST's tables, which repeat for datasets and methods.

Each function makes one kind of table. Its arguments are the table's number, the printed
table as text (see `experiments.tools.printed_tables`) and the docstring of the
experiment file, which opens the notes of the report.
"""

import raysafl as fl
from experiments.fast.setting import DISTRIBUTIONS, NOTES, SCALES, entry_runs, window
from experiments.papercheck.comparison import Claim, Comparison
from experiments.tools.datasets import file_part
from experiments.tools.printed_tables import printed_numbers, printed_ratios

# What the runs of an entry differ in, before the labels of the table.
SOURCE = ("reading", "deal")


def _of_runs(printed, runs):
    """Return the printed numbers of a table's entries for all of its runs."""
    return {key: printed[key[2:]] for key in runs if key[2:] in printed}


def participation_table(number, dataset, method, printed, notes):
    """Return table 2 or 4: accuracy under four kinds of participation, for alpha."""
    paper = printed_numbers(printed)
    runs = entry_runs(
        dataset, method, {(name, alpha): (name, 0, alpha) for name, alpha in paper}
    )
    smallest_alpha = min(alpha for _, alpha in paper)
    pairs = [
        [{"participation": "Uniform"}, {"participation": name}]
        for name in DISTRIBUTIONS
    ]
    return Comparison(
        sweep=fl.Sweep(
            name=f"fast_table{number}_{file_part(dataset)}",
            title=f"FAST, table {number}: {method} on {dataset} under four participations",
            axes=(*SOURCE, "participation", "alpha"),
            runs=runs,
            table=fl.Table(
                rows=[*SOURCE, "participation"],
                columns=["alpha"],
                statistic="last5",
                also=["last5_std", "final", "last10", "best"],
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        readings=["reading"],
        source=f"FAST, table {number} ({dataset})",
        paper=_of_runs(paper, runs),
        claims=[
            *(
                Claim(
                    text="uniform participation yields the best performance", order=pair
                )
                for pair in pairs
            ),
            *(
                Claim(
                    text=(
                        "the gap to uniform is more pronounced for the smallest "
                        "alpha (over 3 %)"
                    ),
                    order=pair,
                    where={"alpha": smallest_alpha},
                    margin=3.0,
                )
                for pair in pairs
            ),
        ],
    )


def snapshot_table(number, dataset, method, printed, notes):
    """Return table 3, 6 or 7: accuracy for fixed and adaptive probabilities q."""
    paper = printed_numbers(printed)
    runs = entry_runs(dataset, method, {key: key for key in paper})
    return Comparison(
        sweep=fl.Sweep(
            name=f"fast_table{number}_{file_part(dataset)}",
            title=f"FAST, table {number}: {method} with snapshots on {dataset}",
            axes=(*SOURCE, "participation", "q", "alpha"),
            runs=runs,
            table=fl.Table(
                rows=[*SOURCE, "participation", "q"],
                columns=["alpha"],
                statistic="last5",
                also=["last5_std", "final", "best", "arbitrary_ratio"],
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        readings=["reading"],
        source=f"FAST, table {number} ({dataset})",
        paper=_of_runs(paper, runs),
        more={"arbitrary_ratio": _of_runs(printed_ratios(printed), runs)},
        claims=[claim for name in DISTRIBUTIONS for claim in _snapshot_claims(name)],
    )


def _snapshot_claims(name):
    """Return what sections 5.1 and B.2.2 say of one distribution."""

    def at(q):
        return {"participation": name, "q": q}

    uniform = {"participation": "Uniform", "q": 1}
    return [
        Claim(
            text=f"{name}: accuracy grows with q (0, 0.1, 0.5)",
            order=[at(0.5), at(0.1), at(0)],
        ),
        Claim(
            text=f"{name}: q = 0.5 nearly matches uniform (3 %)",
            order=[uniform, at(0.5)],
            within=3.0,
        ),
        Claim(
            text=f"{name}: the default adaptive FAST helps",
            order=[at("Ada.(1)"), at(0)],
        ),
        Claim(
            text=f"{name}: lambda = 7 helps more than 1",
            order=[at("Ada.(7)"), at("Ada.(1)")],
        ),
        Claim(
            text=f"{name}: the default adaptive FAST needs less than 10 % snapshots",
            where=at("Ada.(1)"),
            statistic="arbitrary_ratio",
            least=90.0,
        ),
    ]


def curves(dataset, entries, readings, notes, claims=()):
    """Return the first 600 rounds of entries with alpha = 0.1, to hold against curves.

    Args:
        dataset: A name in `setting.BASE_RUNS`.
        entries: The pairs (participation, q).
        readings: The names in `setting.READINGS` that are run.
        notes: The docstring of the experiment file.
        claims: What is said of the first 600 rounds.
    """
    runs = entry_runs(dataset, "FedAvg", {entry: (*entry, 0.1) for entry in entries})
    return Comparison(
        sweep=fl.Sweep(
            name=f"fast_curves_{file_part(dataset)}",
            title=f"FAST+FedAvg on {dataset}, alpha = 0.1, for 600 rounds",
            axes=(*SOURCE, "participation", "q"),
            runs={key: window(run) for key, run in runs.items() if key[0] in readings},
            table=fl.Table(
                rows=["reading", "participation", "q"],
                columns=["deal"],
                statistic="last5",
                also=["last5_std", "rolling20", "best", "arbitrary_ratio"],
            ),
            notes=notes + NOTES,
            scales={
                name: scale for name, scale in SCALES.items() if scale is not window
            },
        ),
        claims=claims,
    )


def lambda_table(number, alpha, printed, notes):
    """Return table 5 or 8: adaptive FAST on Fashion-MNIST for each lambda."""
    paper = printed_numbers(printed)
    entries = {
        (strength, name): (name, f"Ada.({strength})", alpha) for strength, name in paper
    }
    runs = entry_runs("Fashion-MNIST", "FedAvg", entries)
    return Comparison(
        sweep=fl.Sweep(
            name=f"fast_table{number}_fashion_mnist",
            title=f"FAST, table {number}: adaptive FAST+FedAvg on Fashion-MNIST, alpha = "
            f"{alpha}",
            axes=(*SOURCE, "lambda", "participation"),
            runs=runs,
            table=fl.Table(
                rows=[*SOURCE, "participation"],
                columns=["lambda"],
                statistic="last5",
                also=["last5_std", "final", "best", "arbitrary_ratio"],
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        readings=["reading"],
        source=f"FAST, table {number}",
        paper=_of_runs(paper, runs),
        more={"arbitrary_ratio": _of_runs(printed_ratios(printed), runs)},
        claims=[
            Claim(
                text="the ratio falls with lambda (1 against 9)",
                order=[{"lambda": 1}, {"lambda": 9}],
                statistic="arbitrary_ratio",
                margin=10.0,
            ),
            Claim(
                text=(
                    "with lambda = 1 less than 5 % (alpha = 0.1), 12 % (0.05) of "
                    "snapshots"
                ),
                where={"lambda": 1},
                statistic="arbitrary_ratio",
                least=95.0 if alpha == 0.1 else 88.0,
            ),
        ],
    )
