"""Build the sweeps of FSL's figures, each of which exists for CIFAR-10 and for EMNIST.

Each function makes one figure. Its arguments are the dataset's name, what differs
between the datasets, and the docstring of the experiment file, which opens the notes of
the report.
"""

from dataclasses import replace

import raysafl as fl
from experiments.fsl.setting import (
    CLASSES,
    GAMMAS,
    NOTES,
    SCALES,
    SHOWN,
    scenario1,
    scenario2,
)
from experiments.papercheck.comparison import Claim, Comparison
from experiments.tools.datasets import file_part

LOCAL_RATES = (0.01, 0.02, 0.05, 0.1)  # of figure 5
SERVER_LEARNING = ("FSL", "FSLsyn")
RIVALS = ("SCAFFOLD", "FedDyn")


def _accuracy_over_classes(dataset, pretrain):
    """Return the entries of figures 1 and 6: FL, DS, and FSL with each gamma."""
    gammas = {f"FSL {gamma}": {"gamma": gamma} for gamma in GAMMAS[dataset]}
    methods = {"FL": {}, "DS": {}} | gammas
    return {
        (C, name): scenario1(dataset, name.split()[0], C, pretrain=pretrain, **options)
        for C in CLASSES[dataset]
        for name, options in methods.items()
    }


def figure1(dataset, notes):
    """Return figure 1: accuracy for C classes per client, with pre-training."""
    iid_classes = CLASSES[dataset][-1]
    return Comparison(
        sweep=fl.Sweep(
            name=f"fsl_figure1_{file_part(dataset)}",
            title=f"FSL, figure 1: accuracy against classes per client and gamma, {dataset}",
            axes=("C", "method"),
            runs=_accuracy_over_classes(dataset, pretrain=500),
            table=fl.Table(
                rows=["method"],
                columns=["C"],
                **SHOWN,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        claims=[
            Claim(
                text="all reach a similar accuracy in the IID case (3 %)",
                order=[{"method": name} for name in ("FSL 1.0", "DS", "FL")],
                where={"C": iid_classes},
                within=3.0,
            ),
            *(
                Claim(
                    text=(
                        "FL suffers significantly as C decreases; DS greatly "
                        "improves over it"
                    ),
                    order=[{"method": "DS"}, {"method": "FL"}],
                    where={"C": C},
                    margin=3.0,
                )
                for C in (1, 2)
            ),
            Claim(
                text="in all cases FSL has the highest accuracy",
                order=[{"method": "FSL 1.0"}, {"method": "DS"}],
            ),
            Claim(
                text="in all cases FSL converges fastest (rise time)",
                order=[{"method": "DS"}, {"method": "FSL 1.0"}],
                statistic="rise_time20",
            ),
            Claim(
                text="FSL performs fairly consistently for a range of gamma (3 %)",
                order=[{"method": f"FSL {gamma}"} for gamma in (0.5, 1.0, 1.5)],
                within=3.0,
            ),
        ],
    )


def figure2(dataset, notes, *, C, S, server_sizes):
    """Return figure 2: accuracy and rise time for gamma, local rates and sizes n0."""
    return Comparison(
        sweep=fl.Sweep(
            name=f"fsl_figure2_{file_part(dataset)}",
            title=f"FSL, figure 2: accuracy and rise time against gamma (0: DS), {dataset}",
            axes=("n0", "lr", "gamma"),
            runs={
                (n0, lr, gamma): scenario1(
                    dataset, "FSL" if gamma else "DS", C, S=S, lr=lr, gamma=gamma, n0=n0
                )
                for n0 in server_sizes
                for lr in (0.01, 0.05)
                for gamma in (0.0, 0.5, 1.0, 1.5, 2.0)
            },
            table=fl.Table(
                rows=["n0", "lr"],
                columns=["gamma"],
                **SHOWN,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        claims=[
            Claim(
                text="increasing gamma from 0 (DS) improves the accuracy",
                order=[{"gamma": 0.5}, {"gamma": 0.0}],
            ),
            Claim(
                text="and the convergence time",
                order=[{"gamma": 0.0}, {"gamma": 0.5}],
                statistic="rise_time20",
            ),
            Claim(
                text="gamma over [0.5, 1.5] provides similar performance (3 %)",
                order=[{"gamma": 0.5}, {"gamma": 1.0}, {"gamma": 1.5}],
                within=3.0,
            ),
            Claim(
                text="increasing the server data size improves FSL further (gamma = 1)",
                order=[{"n0": n0} for n0 in reversed(server_sizes)],
                where={"gamma": 1.0},
            ),
        ],
    )


def figure5(dataset, notes, *, claims):
    """Return figure 5: heat maps of four methods' accuracy over local rates and C."""
    return Comparison(
        sweep=fl.Sweep(
            name=f"fsl_figure5_{file_part(dataset)}",
            title=f"FSL, figure 5: accuracy over local rate and classes per client, {dataset}",
            axes=("method", "lr", "C"),
            runs={
                (method, lr, C): scenario2(dataset, method, C, lr)
                for method in (*SERVER_LEARNING, *RIVALS)
                for lr in LOCAL_RATES
                for C in CLASSES[dataset]
            },
            table=fl.Table(
                rows=["method", "lr"],
                columns=["C"],
                panels=["method"],
                **SHOWN,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        claims=claims,
    )


def figure6(dataset, notes):
    """Return figure 6: accuracy for C classes per client, without pre-training."""
    iid_classes = CLASSES[dataset][-1]
    return Comparison(
        sweep=fl.Sweep(
            name=f"fsl_figure6_{file_part(dataset)}",
            title=f"FSL, figure 6: accuracy against classes per client and gamma, {dataset}, "
            "no pre-training",
            axes=("C", "method"),
            runs=_accuracy_over_classes(dataset, pretrain=0),
            table=fl.Table(
                rows=["method"],
                columns=["C"],
                **SHOWN,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        claims=[
            Claim(
                text=(
                    "the acceleration by server learning is significant, even in the "
                    "IID case"
                ),
                order=[{"method": "FL"}, {"method": "FSL 1.0"}],
                statistic="rise_time20",
            ),
            Claim(
                text="DS offers little to no benefit in the IID case (2 %)",
                order=[{"method": "DS"}, {"method": "FL"}],
                where={"C": iid_classes},
                within=2.0,
            ),
            Claim(
                text="FSL has the highest accuracy",
                order=[{"method": "FSL 1.0"}, {"method": "DS"}],
            ),
        ],
    )


def figure7(dataset, notes, *, cohort_sizes, n0):
    """Return figure 7: FSL, its non-incremental form FSL-p, and DS, for C and S."""
    return Comparison(
        sweep=fl.Sweep(
            name=f"fsl_figure7_{file_part(dataset)}",
            title=f"FSL, figure 7: FSL, FSL-p and DS, {dataset}",
            axes=("C", "S", "method"),
            runs={
                (C, S, method): scenario1(dataset, method, C, S=S, n0=n0)
                for C in (1, 2, 5)
                for S in cohort_sizes
                for method in ("FSL", "FSL-p", "DS")
            },
            table=fl.Table(
                rows=["C", "method"],
                columns=["S"],
                **SHOWN,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        claims=[
            *(
                Claim(
                    text="FSL significantly outperforms FSL-p and DS in all cases",
                    order=[{"method": "FSL"}, {"method": other}],
                )
                for other in ("FSL-p", "DS")
            ),
            Claim(
                text="FSL-p is slightly worse than DS",
                order=[{"method": "DS"}, {"method": "FSL-p"}],
            ),
        ],
    )


def figure8(dataset, notes, *, C, S, n0):
    """Return figure 8: FSL and FSL-p for gamma, and DS, which is shown at gamma = 0."""
    gammas = (0.5, 1.0, 1.5, 2.0)
    entries = [
        ("DS", 0.0),
        *((method, gamma) for method in ("FSL", "FSL-p") for gamma in gammas),
    ]
    return Comparison(
        sweep=fl.Sweep(
            name=f"fsl_figure8_{file_part(dataset)}",
            title=f"FSL, figure 8: FSL and FSL-p against gamma (DS at 0), {dataset}",
            axes=("method", "gamma"),
            runs={
                (method, gamma): scenario1(dataset, method, C, S=S, n0=n0, gamma=gamma)
                for method, gamma in entries
            },
            table=fl.Table(
                rows=["method"],
                columns=["gamma"],
                **SHOWN,
            ),
            notes=notes + NOTES,
            scales=SCALES,
        ),
        claims=[
            Claim(
                text="FSL significantly outperforms FSL-p at every gamma",
                order=[{"method": "FSL"}, {"method": "FSL-p"}],
            ),
            *(
                Claim(
                    text="FSL outperforms DS at every gamma",
                    order=[
                        {"method": "FSL", "gamma": gamma},
                        {"method": "DS", "gamma": 0.0},
                    ],
                )
                for gamma in gammas
            ),
        ],
    )


def curves_of_figure5(number, dataset, figure5_sweep, notes):
    """Return figure 10 or 11: the runs of figure 5, shown as accuracy over rounds."""
    return Comparison(
        sweep=replace(
            figure5_sweep,
            name=f"fsl_figure{number}",
            title=f"FSL, figure {number}: accuracy over rounds, {dataset}",
            table=fl.Table(rows=["lr", "method"], columns=["C"], **SHOWN),
            notes=notes + NOTES,
        ),
        claims=[
            *(
                Claim(
                    text=f"{own}'s rise time is below that of {other} in most cases",
                    order=[{"method": other}, {"method": own}],
                    statistic="rise_time20",
                )
                for own in SERVER_LEARNING
                for other in RIVALS
            ),
            *(
                Claim(
                    text=(
                        f"{own} is comparable to SCAFFOLD, if not better, in most "
                        "cases (3 %)"
                    ),
                    order=[{"method": own}, {"method": "SCAFFOLD"}],
                    margin=-3.0,
                )
                for own in SERVER_LEARNING
            ),
        ],
    )
