"""The setting that FAST's tables share (docs/papers.md#fast), in three readings.

Tables that print the same entry build the same run here, with the same run id.
"""

import raysafl as fl
from experiments.fast.fedlab import FedLabDirichlet
from experiments.fast.known_cohorts import KnownCohorts
from experiments.fast.networks import FastCifarNet, FastFashionNet
from experiments.tools.datasets import cifar10
from raysafl.sweep.definition import smoke as two_rounds

NOTES = """
There are three readings of each entry. The reading `authors` is what the published code of
FAST's authors does. The reading `printed` differs from it where the paper says otherwise.
The reading `unequal` is `printed` but for the clients' sizes, which are those of the code: so
runs can be compared that differ in one of these points alone. Entries that are the same in
two readings stand under the first one alone.

| | `authors` | `printed` |
|---|---|---|
| samples of the clients | their numbers differ | all clients have equally many |
| learning rate of CIFAR-10 | stays 1e-2 | is halved at round 5,000 |
| Weibull | draws are divided by 1.2 | Weibull(10, 1) |
| FedProx | its proximal term is zero, so it is FedAvg | mu = 0.01, which is our choice |
| FedAvgM | its momentum is never stored, so it is FedAvg | beta = 0.9, which is our choice |

All have the following of the code. There are 100 clients, or 139 for Shakespeare, and 10 %
of them train in a round. A client takes up to 10 mini-batches of 128, stops where its pass
over its data ends, and goes on with its pass and its optimizer in the next round in which
it comes (`ContinuedTraining`). Fashion-MNIST: Adam at rate 1e-3, in the order of the deal;
1,000 rounds. CIFAR-10: SGD at rate 1e-2 with momentum 0.9, reshuffled in each pass, random
crops and flips of training and test images; 10,000 rounds. Shakespeare: SGD at rate 0.5
with momentum 0.9 and weight decay 5e-4; 5,000 rounds. Adaptive FAST follows the cohort's
mean of the clients' running training accuracies. The networks are the authors'.

An entry of the paper is one run, and its +- is the standard deviation of the last five of
its tests (`last5`, `last5_std`), which lie 10 rounds apart. Two runs of one law differ by
more: `python -m experiments.fast.authors_curves` measures by how much.

Fashion-MNIST has two deals. `365` is the one that the authors' code makes with their seed,
and for q = 0 the cohorts that it draws then; it is known to the last index. `own` is of the
same law, drawn by this platform.

What stays different: a client of FedProx returns its last local model, where the code
returns the best of them; initial weights are drawn by this platform; one mean and one standard
deviation standardise all channels of CIFAR-10, where the code has one pair for each;
augmented test images are drawn once; the plays are another file with fewer characters
than the 80 that the network has. The curves of CIFAR-10 and Shakespeare are older than the
present distributions in the code, so what those runs drew cannot be known.

Scale `window` is the paper's for 600 rounds, for the means over rounds 100 to 300 and 300
to 600. Scale `small`: two seeds, 30 clients, 3 of them a round, 40 rounds, narrow networks,
mini-batches of 32; 6,000 images, a test on 1,000 every 4 rounds, MNIST in place of
Fashion-MNIST; texts of 20 characters by 30 speakers. It can only show directions.
"""
DISTRIBUTIONS = {
    "Beta": fl.participation.Beta(),
    "Gamma": fl.participation.Gamma(),
    "Weibull": fl.participation.Weibull(),
}
AUTHORS_LAWS = DISTRIBUTIONS | {"Weibull": fl.participation.Weibull(lam=1 / 1.2)}
METHODS = {
    "FedAvg": fl.FedAvg(),
    "FedProx": fl.algorithms.FedProx(prox=0.01),
    "FedAvgM": fl.algorithms.FedAvgM(momentum=0.9),
}
READINGS = ("authors", "printed", "unequal")
DEALS = {"Fashion-MNIST": ("365", "own"), "CIFAR-10": ("own",), "Shakespeare": ("own",)}
STEPS = {"batch_size": 128, "steps": 10}


def _base_run(dataset, partition, model, rounds, local, clients=100, m=10):
    """Return a run of FedAvg whose cohorts are m clients, drawn uniformly."""
    return fl.Run(
        data=fl.Federation(dataset=dataset, clients=clients, partition=partition),
        model=model,
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=m),
        local=local,
        rounds=rounds,
        replicates=1,
        eval_every=10,
    )


BASE_RUNS = {
    "Fashion-MNIST": _base_run(
        fl.data.FashionMnist(standardise=(0.5, 0.5)),
        FedLabDirichlet(alpha=0.1),
        FastFashionNet(),
        rounds=1000,
        local=fl.training.ContinuedTraining(
            lr=1e-3, optimizer="adam", shuffle=False, **STEPS
        ),
    ),
    "CIFAR-10": _base_run(
        fl.data.Augmented(
            dataset=cifar10().replace(standardise=(0.4734, 0.2009)), test=True
        ),
        FedLabDirichlet(alpha=0.1, capped=False, min_samples=1),
        FastCifarNet(),
        rounds=10000,
        local=fl.training.ContinuedTraining(lr=1e-2, momentum=0.9, **STEPS),
    ),
    "Shakespeare": _base_run(
        fl.data.Shakespeare(),
        fl.data.ByUser(),
        fl.models.CharLSTM(),
        rounds=5000,
        local=fl.training.ContinuedTraining(
            lr=0.5, momentum=0.9, weight_decay=5e-4, shuffle=False, **STEPS
        ),
        clients=139,
        m=14,
    ),
}


def participation_policy(
    participation, q, m, accuracy="local", distributions=DISTRIBUTIONS
):
    """Return who takes part in the rounds of an entry.

    Args:
        participation: "Uniform", or the name of a distribution.
        q: The probability that a round is a snapshot, that is, that its cohort is drawn
            uniformly; 0 means no snapshots. "Ada.(lambda)" asks for adaptive FAST.
        m: The number of clients in a round.
        accuracy: Whose training accuracy changes q in adaptive FAST, as a word of
            `Snapshot.accuracy`.
        distributions: The distributions by name.
    """
    uniform = fl.Uniform(m=m)
    if participation == "Uniform":
        return uniform
    arbitrary = fl.participation.Arbitrary(dist=distributions[participation], m=m)
    if q == 0:
        return arbitrary
    if isinstance(q, str):
        adapt = float(q.removeprefix("Ada.(").removesuffix(")"))
        return fl.Snapshot(
            base=arbitrary, uniform=uniform, adapt=adapt, accuracy=accuracy
        )
    return fl.Snapshot(base=arbitrary, uniform=uniform, snapshot_prob=q)


def entry_run(
    dataset, participation, q, alpha, method="FedAvg", reading="authors", deal="own"
):
    """Return the run of one entry of a table.

    Args:
        dataset: A name in `BASE_RUNS`.
        participation: "Uniform", or the name of a distribution.
        q: The probability of a snapshot, or "Ada.(lambda)".
        alpha: The concentration of the Dirichlet partition; "natural" keeps
            Shakespeare's partition by speakers.
        method: A name in `METHODS`.
        reading: A name in `READINGS`.
        deal: "365" for the known deal of Fashion-MNIST, with its cohorts for q = 0; or
            "own".
    """
    base = BASE_RUNS[dataset]
    m = base.participation.m
    laws = AUTHORS_LAWS if reading == "authors" else DISTRIBUTIONS
    changes = {"participation": participation_policy(participation, q, m, "pass", laws)}
    if alpha != "natural":
        changes |= (
            {"data.partition": fl.Dirichlet(alpha=alpha)}
            if reading == "printed"
            else {"data.partition.alpha": alpha}
        )
    if deal == "365":
        changes["data.partition.legacy_seed"] = 365
        if q == 0 and participation in DISTRIBUTIONS:
            changes["participation"] = KnownCohorts(law=participation, alpha=alpha)
    if reading != "authors":
        changes["algorithm"] = METHODS[method]
        if dataset == "CIFAR-10":
            changes["local.schedule"] = fl.training.StepRate(milestones=[5000])
    return base.replace(changes)


def entry_runs(dataset, method, entries):
    """Return the runs of a table's entries by (reading, deal, labels of the entry).

    Entries that are the same in two readings are there once, under the first of them.

    Args:
        dataset: A name in `BASE_RUNS`.
        method: A name in `METHODS`.
        entries: For the labels of each entry its (participation, q, alpha).
    """
    runs = {}
    for reading in READINGS:
        for deal in DEALS[dataset] if reading == "authors" else ("own",):
            for labels, entry in entries.items():
                run = entry_run(dataset, *entry, method, reading, deal)
                if run not in runs.values():
                    runs[(reading, deal, *labels)] = run
    return runs


def small(run):
    """Return a run that takes minutes on two cores; `NOTES` says what it changes."""
    run = _by_law(run)
    changes = {"data.clients": 30, "rounds": 40, "replicates": 2, "eval_every": 4}
    changes |= {"local.batch_size": 32}
    if run.local.schedule is not None:
        changes["local.schedule"] = fl.training.StepRate(milestones=[20])
    changes |= {f"participation.{name}": 3 for name in _cohort_sizes(run.participation)}

    if isinstance(run.data.dataset, fl.data.Shakespeare):
        dataset = fl.data.Shakespeare(speakers=30, length=20, stride=20)
        changes |= {"model.hidden": 32, "model.layers": 1, "model.dropout": 0.0}
    else:
        whole = run.data.dataset
        if isinstance(whole, fl.data.FashionMnist):
            whole = fl.data.Mnist(standardise=(0.5, 0.5))
        dataset = fl.data.Subset(dataset=whole, train=6000, test=1000)
        changes |= {"model.channels": [8, 16], "model.hidden": 32}
    return run.replace(changes).replace({"data.dataset": dataset})


def _by_law(run):
    """Return a run whose known cohorts, of 10 in 100 clients, are drawn by their law."""
    if not isinstance(run.participation, KnownCohorts):
        return run
    dist = AUTHORS_LAWS[run.participation.law]
    return run.replace(participation=fl.participation.Arbitrary(dist=dist, m=10))


def _cohort_sizes(policy):
    """Return the fields of a participation policy that hold the size of the cohort."""
    if isinstance(policy, fl.Snapshot):
        return ["base.m", "uniform.m"]
    return ["m"]


def smoke(run):
    """Return two rounds of a run, with a narrow network and short texts."""
    run = two_rounds(_by_law(run))
    if isinstance(run.model, fl.models.CharLSTM):
        return run.replace({"data.dataset.dataset.length": 8, "model.hidden": 8})
    changes = {"model.channels": [4] * len(run.model.channels), "model.hidden": 8}
    if isinstance(run.data.partition, FedLabDirichlet):
        # Small data cannot be dealt so that each of 100 clients has ten samples. The seed
        # tells these runs from those of the reading `printed`, whose sizes are equal.
        partition = run.data.partition
        changes["data.partition"] = fl.Dirichlet(alpha=partition.alpha)
        changes["data.seed"] = partition.legacy_seed or run.data.seed + 1
    return run.replace(changes)


def window(run):
    """Return the first 600 rounds of a run."""
    return run.replace(rounds=600)


SCALES = {"small": small, "window": window, "smoke": smoke}
