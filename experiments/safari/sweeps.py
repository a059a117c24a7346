"""Build the sweeps of SAFARI's tables that exist for MNIST and for CIFAR-10.

Each function makes one kind of table. Its arguments are the dataset's name, the printed
table as text (see `experiments.tools.printed_tables`) and the docstring of the
experiment file, which opens the notes of the report.
"""

import raysafl as fl
from experiments.papercheck.comparison import Claim, Comparison
from experiments.safari.setting import NOTES, PRINTED_STATISTIC, SCALES, entry_run
from experiments.tools.datasets import file_part
from experiments.tools.printed_tables import (
    dashed_entries,
    entry_texts,
    printed_numbers,
)


def absence_table(dataset, printed, notes, *, decrease, iid_decrease, iid_within):
    """Return table 1: FedAvg's accuracy when s clients never take part, p classes each.

    Args:
        dataset: "MNIST" or "CIFAR-10".
        printed: The table's text.
        notes: What the report says first.
        decrease: The paper's words on the largest loss of accuracy.
        iid_decrease: The paper's words on the loss with IID data (p = 10).
        iid_within: The largest loss, in percentage points, that these words allow.
    """
    paper = printed_numbers(printed)
    return Comparison(
        sweep=fl.Sweep(
            name=f"safari_table1_{file_part(dataset)}",
            title=f"SAFARI, table 1: FedAvg on {dataset}, s of 10 clients never come, p "
            "classes each",
            axes=("s", "p"),
            runs={(s, p): entry_run(dataset, "FedAvg", s=s, p=p) for s, p in paper},
            table=fl.Table(
                rows=["s"],
                columns=["p"],
                statistic=PRINTED_STATISTIC,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        source=f"SAFARI, table 1 ({dataset})",
        paper=paper,
        claims=[
            Claim(
                text=f"{decrease} from s = 0 to s = 4 (p = 1)",
                order=[{"s": 0}, {"s": 4}],
                where={"p": 1},
                margin=20.0,
            ),
            Claim(
                text=f"with IID data (p = 10) {iid_decrease}",
                order=[{"s": 0}, {"s": 4}],
                where={"p": 10},
                within=iid_within,
            ),
        ],
    )


def improvement_table(dataset, printed, notes):
    """Return table 2: SAFARI's accuracy minus FedAvg's for s absent clients."""
    return Comparison(
        sweep=fl.Sweep(
            name=f"safari_table2_{file_part(dataset)}",
            title="SAFARI, table 2: accuracy of SAFARI (q = 0.8) minus that of FedAvg, "
            f"{dataset}",
            axes=("s", "method", "p"),
            runs={
                (s, method, p): entry_run(dataset, method, s=s, p=p)
                for s, p in entry_texts(printed)
                for method in ("FedAvg", "SAFARI")
            },
            table=fl.Table(
                rows=["s", "method"],
                columns=["p"],
                statistic=PRINTED_STATISTIC,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        minus={"method": "FedAvg"},
        source=f"SAFARI, table 2 ({dataset})",
        paper={
            (s, "SAFARI", p): number
            for (s, p), number in printed_numbers(printed).items()
        },
        claims=_no_difference(dashed_entries(printed), ("s", "p")),
    )


def server_data_table(number, dataset, printed, notes, earlier=""):
    """Return table 3 or 4: SAFARI's accuracy minus FedAvg's for n0 server samples.

    Args:
        number: The table's number.
        dataset: "MNIST" or "CIFAR-10".
        printed: The table's text.
        notes: What the report says first.
        earlier: The same table in an earlier version of the paper, if it prints one.
    """
    sizes = sorted({n0 for n0, _ in entry_texts(printed)}, reverse=True)
    fedavg = {(0, p): entry_run(dataset, "FedAvg", p=p) for p in (10, 5, 2, 1)}
    safari = {
        (n0, p): entry_run(dataset, "SAFARI", p=p, n0=n0)
        for n0, p in entry_texts(printed)
    }
    return Comparison(
        sweep=fl.Sweep(
            name=f"safari_table{number}_{file_part(dataset)}",
            title=f"SAFARI, table {number}: accuracy of SAFARI with n0 samples "
            f"minus that of FedAvg, {dataset}",
            axes=("n0", "p"),
            runs=fedavg | safari,
            table=fl.Table(
                rows=["n0"],
                columns=["p"],
                statistic=PRINTED_STATISTIC,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        minus={"n0": 0},
        source=f"SAFARI, table {number}",
        paper=printed_numbers(printed),
        more={PRINTED_STATISTIC: printed_numbers(earlier)} if earlier else {},
        claims=[
            *_no_difference(dashed_entries(printed), ("n0", "p")),
            *(
                Claim(
                    text="more server data help more (p = 1, 2)",
                    order=[{"n0": n0} for n0 in sizes],
                    where={"p": p},
                )
                for p in (1, 2)
            ),
        ],
    )


def client_probability_table(dataset, printed, notes):
    """Return table 5: accuracy for the probability q of a client round."""
    paper = printed_numbers(printed)
    return Comparison(
        sweep=fl.Sweep(
            name=f"safari_table5_{file_part(dataset)}",
            title=f"SAFARI, table 5: a client round with probability q, {dataset}, one "
            "class per client",
            axes=("s", "q"),
            runs={
                (s, q): entry_run(
                    dataset, "FedAvg" if q == 1 else "SAFARI", s=s, p=1, q=q
                )
                for s, q in paper
            },
            table=fl.Table(
                rows=["s"],
                columns=["q"],
                statistic=PRINTED_STATISTIC,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        source=f"SAFARI, table 5 ({dataset})",
        paper=paper,
        claims=[
            Claim(
                text=(
                    "even with a server round with probability 0.2 there is a "
                    "non-negligible gain"
                ),
                order=[{"q": 0.8}, {"q": 1.0}],
                margin=1.0,
            ),
        ],
    )


def comparison_table(number, dataset, printed, notes):
    """Return table 8 or 9: FedAvg and SAFARI with s absent clients, p classes each."""
    paper = printed_numbers(printed)
    both = [{"method": "SAFARI"}, {"method": "FedAvg"}]
    return Comparison(
        sweep=fl.Sweep(
            name=f"safari_table{number}_{file_part(dataset)}",
            title=f"SAFARI, table {number}: {dataset}, s of 10 clients never come, p "
            "classes each",
            axes=("s", "method", "p"),
            runs={
                (s, method, p): entry_run(dataset, method, s=s, p=p)
                for s, method, p in paper
            },
            table=fl.Table(
                rows=["s", "method"],
                columns=["p"],
                statistic=PRINTED_STATISTIC,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        source=f"SAFARI, table {number} ({dataset})",
        seeds={"MNIST": 5, "CIFAR-10": 3}[dataset],
        paper=paper,
        claims=[
            Claim(
                text="SAFARI is better than FedAvg where clients have one class each",
                order=both,
                where={"p": 1},
                margin=1.0,
            ),
            Claim(
                text="no difference for homogeneous data (p = 10)",
                order=both,
                where={"p": 10},
                within=2.0,
            ),
        ],
    )


def cohort_size_table(number, dataset, printed, notes):
    """Return table 10 or 11: accuracy when m clients train in a round."""
    paper = printed_numbers(printed)
    return Comparison(
        sweep=fl.Sweep(
            name=f"safari_table{number}_{file_part(dataset)}",
            title=f"SAFARI, table {number}: {dataset}, m clients a round, p classes each",
            axes=("m", "method", "p"),
            runs={
                (m, method, p): entry_run(dataset, method, m=m, p=p)
                for m, method, p in paper
            },
            table=fl.Table(
                rows=["m", "method"],
                columns=["p"],
                statistic=PRINTED_STATISTIC,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        source=f"SAFARI, table {number} ({dataset})",
        paper=paper,
        claims=[
            Claim(
                text=(
                    "few clients a round harm FedAvg where data are not IID (m = 1 "
                    "against 5)"
                ),
                order=[{"m": 5}, {"m": 1}],
                where={"method": "FedAvg", "p": p},
            )
            for p in (5, 2, 1)
        ],
    )


def _no_difference(keys, axes):
    """Return a claim for each dash, which is printed for differences below 2 %."""
    places = [dict(zip(axes, key, strict=True)) for key in keys]
    return [
        Claim(text="'-': no difference within 2 %", where=where, least=-2.0, most=2.0)
        for where in places
    ]
