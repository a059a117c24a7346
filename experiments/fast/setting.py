"""The setting that FAST's tables share (docs/papers.md#fast).

Tables that print the same entry build the same run here, with the same run id.
"""

import raysafl as fl
from experiments.tools.datasets import cifar10
from raysafl.sweep.definition import smoke as two_rounds

NOTES = """
What the paper prints (section 5 and appendix B): there are 100 clients, or 139 for
Shakespeare, and 10 % of them train in a round. The partition is a balanced
Dirichlet(alpha); for Shakespeare each client is one speaker. The distributions of
arbitrary participation are Beta(1, 10), Gamma(10, 0.01) and Weibull(10, 1). The batch
size is 128. Fashion-MNIST: 1,000 rounds at rate 1e-3. CIFAR-10: 10,000 rounds at rate
1e-2, which is halved at round 5,000. Shakespeare: 5,000 rounds at rate 0.5. An entry is
the mean and the standard deviation of the last five test accuracies of a run (`last5`,
`last5_std`). The column Ratio is the share of rounds with arbitrary participation
(`arbitrary_ratio`). The row of adaptive FAST with its default lambda = 1 is called
`Ada.(1)` here.

What the paper leaves open, and our choice: client i of M participates with the
probability mass of the distribution on [i/M, (i+1)/M]. Images are trained for five
local epochs of plain SGD, which is the local step that Algorithm 1 prints. In adaptive
FAST, q follows the training accuracy of the new global model over the samples of all
clients. These three choices come nearest to table 3 on CIFAR-10
(`experiments/fast/readings.py`, which compares eleven, and
`experiments/fast/readings_long.py`, which has more rounds). Other local training was
not tried on text, which is trained for one epoch of plain SGD. The sizes of the
networks, mu = 0.01 of FedProx and beta = 0.9 of FedAvgM are our choice. The accuracy is
tested every ten rounds, so that the last five tests lie 40 rounds apart. The paper
seems to have one run of each entry. We have three seeds, so our +- is the spread over
seeds, and `last5_std` is what compares with the printed spread.

Scale `small`: two seeds, 30 clients, 3 of them a round, 40 rounds, narrow networks.
Images: 6,000 for training, a test on 1,000 every 4 rounds, rate 0.02, and MNIST in
place of Fashion-MNIST. Shakespeare: 30 speakers, texts of 20 characters, and a narrow
LSTM. It can only show directions. Scale `medium` is `small` for as many rounds as
learning the images takes: 600 on CIFAR-10, tested every 20, and 100 on MNIST, tested
every 5, with one seed. Text has 200 rounds.
"""
DISTRIBUTIONS = {"Beta": fl.Beta(), "Gamma": fl.Gamma(), "Weibull": fl.Weibull()}
METHODS = {
    "FedAvg": fl.FedAvg(),
    "FedProx": fl.FedProx(prox=0.01),
    "FedAvgM": fl.FedAvgM(momentum=0.9),
}
DIRICHLET = fl.Dirichlet(alpha=0.1)


def _base_run(dataset, partition, model, rounds, local, clients=100, m=10):
    """Return a run of FedAvg whose cohorts are m clients, drawn uniformly."""
    return fl.Run(
        data=fl.Federation(dataset=dataset, clients=clients, partition=partition),
        model=model,
        algorithm=fl.FedAvg(),
        participation=fl.Uniform(m=m),
        local=local,
        rounds=rounds,
        replicates=3,
        eval_every=10,
    )


BASE_RUNS = {
    "Fashion-MNIST": _base_run(
        fl.FashionMnist(),
        DIRICHLET,
        fl.FastFashionNet(),
        rounds=1000,
        local=fl.LocalTraining(lr=1e-3, batch_size=128, epochs=5),
    ),
    "CIFAR-10": _base_run(
        cifar10(),
        DIRICHLET,
        fl.FastCifarNet(),
        rounds=10000,
        local=fl.LocalTraining(
            lr=1e-2, batch_size=128, epochs=5, milestones=[5000], decay=0.5
        ),
    ),
    "Shakespeare": _base_run(
        fl.Shakespeare(),
        fl.ByUser(),
        fl.CharLSTM(),
        rounds=5000,
        local=fl.LocalTraining(lr=0.5, batch_size=128, epochs=1),
        clients=139,
        m=14,
    ),
}


def participation_policy(participation, q, m, accuracy="local"):
    """Return who takes part in the rounds of an entry.

    Args:
        participation: "Uniform", or the name of a distribution in `DISTRIBUTIONS`.
        q: The probability that a round is a snapshot, that is, that its cohort is drawn
            uniformly; 0 means no snapshots. "Ada.(lambda)" asks for adaptive FAST.
        m: The number of clients in a round.
        accuracy: Whose training accuracy changes q in adaptive FAST, as a word of
            `Snapshot.accuracy`.
    """
    uniform = fl.Uniform(m=m)
    if participation == "Uniform":
        return uniform
    arbitrary = fl.Arbitrary(dist=DISTRIBUTIONS[participation], m=m)
    if q == 0:
        return arbitrary
    if isinstance(q, str):
        adapt = float(q.removeprefix("Ada.(").removesuffix(")"))
        return fl.Snapshot(
            base=arbitrary, uniform=uniform, adapt=adapt, accuracy=accuracy
        )
    return fl.Snapshot(base=arbitrary, uniform=uniform, snapshot_prob=q)


def entry_run(dataset, participation, q, alpha, method="FedAvg"):
    """Return the run of one entry of a table.

    Args:
        dataset: A name in `BASE_RUNS`.
        participation: "Uniform", or the name of a distribution.
        q: The probability of a snapshot, or "Ada.(lambda)".
        alpha: The concentration of the Dirichlet partition; "natural" keeps
            Shakespeare's partition by speakers.
        method: A name in `METHODS`.
    """
    base = BASE_RUNS[dataset]
    policy = participation_policy(participation, q, base.participation.m, "clients")
    run = base.replace(algorithm=METHODS[method], participation=policy)
    if alpha == "natural":
        return run
    return run.replace({"data.partition": fl.Dirichlet(alpha=alpha)})


def small(run):
    """Return a run that takes minutes on two cores; `NOTES` says what it changes."""
    changes = {"data.clients": 30, "rounds": 40, "replicates": 2, "eval_every": 4}
    changes |= {"local.batch_size": 32, "local.milestones": []}
    changes |= {f"participation.{name}": 3 for name in _cohort_sizes(run.participation)}

    if isinstance(run.data.dataset, fl.Shakespeare):
        dataset = fl.Shakespeare(speakers=30, length=20, stride=20)
        changes |= {"model.hidden": 32, "model.layers": 1, "model.dropout": 0.0}
    else:
        whole = run.data.dataset
        if whole == fl.FashionMnist():
            whole = fl.Mnist()
        dataset = fl.Subset(dataset=whole, train=6000, test=1000)
        lr = 0.02 if run.local.optimizer == "sgd" else 1e-3
        changes |= {"model.channels": [8, 16], "model.hidden": 32, "local.lr": lr}
    return run.replace(changes).replace({"data.dataset": dataset})


def _cohort_sizes(policy):
    """Return the fields of a participation policy that hold the size of the cohort."""
    if isinstance(policy, fl.Snapshot):
        parts = {"base.m": policy.base, "uniform.m": policy.uniform}
    else:
        parts = {"m": policy}
    return [name for name, part in parts.items() if part.m]


def smoke(run):
    """Return two rounds of a run, with a narrow network and short texts."""
    run = two_rounds(run)
    if isinstance(run.model, fl.CharLSTM):
        return run.replace({"data.dataset.dataset.length": 8, "model.hidden": 8})
    channels = [4] * len(run.model.channels)
    return run.replace({"model.channels": channels, "model.hidden": 8})


def medium(run):
    """Return scale `small` for as many rounds as learning the images takes."""
    if run.data.dataset == cifar10():
        return small(run).replace(rounds=600, eval_every=20)
    if isinstance(run.data.dataset, fl.Shakespeare):
        return small(run).replace(rounds=200, eval_every=10)
    return small(run).replace(rounds=100, eval_every=5, replicates=1)


SCALES = {"small": small, "medium": medium, "smoke": smoke}
