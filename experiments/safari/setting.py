"""The setting that SAFARI's tables share (Yang et al., docs/papers.md#safari).

Tables that print the same entry build the same run here, with the same run id.
"""

import raysafl as fl
from experiments.tools.datasets import cifar10
from raysafl.sweep.definition import smoke as two_rounds

NOTES = """
What the paper prints (section 5 and appendix B): there are M = 10 clients, of which s
never take part. In each round the server samples m = 5 of the other M - s clients. A
client trains for one local epoch. All learning rates are 0.1, and the global rate is
1.0. A round is a client round with probability q = 0.8, else a server round. MNIST:
logistic regression, batch size 64, 150 rounds, five random initializations. CIFAR-10: a
CNN, batch size 500, 5,000 rounds, three initializations.

What the paper leaves open, and our choice: the pixels are standardised. Logistic
regression starts at zero, so that seeds differ only in cohorts, batches and SAFARI's
choice between client and server rounds. With p = 2 and p = 5, the classes are dealt in
shards at random (McMahan et al. 2017, docs/papers.md#fedavg); otherwise all kinds of
spread are alike. The paper does not print its deal, so no deal is chosen: the runs have
32 partitions with two seeds each (MNIST), or a partition for each of three seeds
(CIFAR-10), and a printed number is judged by its place among them. The last s clients
are the absent ones. The server's dataset D0 is drawn uniformly, and no client holds its
samples. A server round is one epoch over D0 with the clients' batch size, because a
single step does not reach the printed numbers. Where a table does not name the size n0
of D0, it is 1,000 samples (MNIST) or 10,000 (CIFAR-10), as tables 2 to 4 imply. The CNN
has three convolutions with 64, 128 and 256 channels and 256 hidden units, which is our
guess at what reaches the printed 81 %. The printed accuracy is taken to be the best one
that an evaluation of every fifth round sees (`best5`), so every fifth round is
evaluated. The report also compares the other statistics. A table that prints no
spread is taken to print single runs; tables 8 and 9 print means of five and three seeds
on one partition.

Table 8 alone chose these: standardised inputs and `best5`
(`experiments/safari/readings_inputs.py`), and then shards
(`experiments/safari/readings_spread.py`). `experiments/safari/readings.py` and
`experiments/safari/readings_n0.py` try other choices with pixels in [0, 1].

Scale `small`: two partitions with one seed each; MNIST has 15 rounds. CIFAR-10 has 40
rounds of 8 local steps with batch size 32, a small CNN, a tenth of n0, and a test on
1,000 images every 5 rounds.
"""
FASHION_MNIST_NOTES = """
What the paper prints: M = 150 clients and q = 0.8. It leaves everything else open. We
chose a usual small CNN (convolutions of 32 and 64 channels, each with 2x2 pooling, and
128 hidden units), one class per client (p = 1), m = 10 clients a round, batch size 64,
one local epoch, learning rates 0.1 and 150 rounds. What MNIST's tables have shown is
carried over: pixels are standardised, a server round is one epoch over the server's
dataset D0, and the accuracy is the best one that an evaluation of every fifth round
sees (`best5`). There are four partitions, each with a seed of its own. The printed means
are taken to be those of three seeds on one partition.

Scale `small`: two partitions with one seed each, 10,000 images of MNIST in place of
Fashion-MNIST, a tenth of n0, a small CNN, and 40 rounds of 8 local steps with batch size
32. It can only show directions.
"""

# The statistic that is compared with the printed accuracies.
PRINTED_STATISTIC = "best5"
# What a model sees of MNIST, which no paper here prints. Standardised inputs are
# (x - 0.1307) / 0.3081, with the mean and the standard deviation of MNIST's training
# images: what PyTorch's own example does.
INPUTS = {
    "0 to 1": fl.data.Mnist(),
    "standardised": fl.data.Mnist(standardise=(0.1307, 0.3081)),
}
_MNIST = fl.Run(
    data=fl.Federation(
        dataset=INPUTS["standardised"],
        clients=10,
        partition=fl.ClassesPerClient(p=10),
        server=fl.IidServer(n0=1000),
    ),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Absent(s=0, m=5),
    local=fl.LocalTraining(lr=0.1, batch_size=64, epochs=1),
    rounds=150,
    replicates=5,
)
# The partitions and the replicates of a run. Nothing says which deal the paper has, so
# a table shows how results spread over many. Evaluating all rounds would only add rows.
DEALS = {
    "MNIST": {"data.partition_seeds": 32, "replicates": 64, "eval_every": 5},
    "CIFAR-10": {"data.partition_seeds": 3, "replicates": 3},
    "Fashion-MNIST": {"data.partition_seeds": 4, "replicates": 4, "eval_every": 5},
}
BASE_RUNS = {  # FedAvg with all clients present; `entry_run` changes what an entry varies
    "MNIST": _MNIST,
    "CIFAR-10": _MNIST.replace(
        {
            "data.dataset": cifar10().replace(standardise=True),
            "data.server.n0": 10000,
            "model": fl.CNN(channels=[64, 128, 256], hidden=256),
            "local.batch_size": 500,
            "rounds": 5000,
            "eval_every": 5,
        }
    ),
    "Fashion-MNIST": _MNIST.replace(
        {
            "data.dataset": fl.data.FashionMnist(standardise=True),
            "data.clients": 150,
            "data.server.n0": 6000,
            "model": fl.CNN(channels=[32, 64], hidden=128),
        }
    ),
}


def entry_run(base, method, p, s=4, m=5, n0=None, q=0.8):
    """Return the run of one entry of a table.

    A run of FedAvg keeps the server dataset of `base`, which it does not use. So an entry
    of FedAvg is the same run whatever n0 the table names.

    Args:
        base: The name of a run of `BASE_RUNS`, whose classes are spread as the tables
            spread them, with many deals; or a run, which keeps its own spread and deal.
        method: "FedAvg" or "SAFARI".
        p: The number of classes per client.
        s: The number of clients that never take part.
        m: The number of clients that train in a round.
        n0: The number of samples at the server; None keeps that of `base`.
        q: SAFARI's probability of a client round.
    """
    spread = dict(DEALS[base]) if isinstance(base, str) else {}
    if spread and p in (5, 2):
        spread["data.partition"] = fl.data.Shards(p=p)
    base = BASE_RUNS[base] if isinstance(base, str) else base
    run = base.replace(
        {"data.partition.p": p, "participation.s": s, "participation.m": m}
    ).replace(spread)
    if method == "FedAvg":
        return run
    server_update = fl.LocalTraining(lr=0.1, batch_size=base.local.batch_size, epochs=1)
    run = run.replace(algorithm=fl.SAFARI(client_prob=q, server_update=server_update))
    return run.replace({"data.server.n0": n0}) if n0 else run


def small(run):
    """Return a run that takes minutes on two cores; `NOTES` says what it changes."""
    if not isinstance(run.model, fl.CNN):
        return run.replace(rounds=min(15, run.rounds), replicates=2)

    changes = {"local.epochs": None, "local.steps": 8, "local.batch_size": 32}
    if run.algorithm.uses_server_data:
        changes["algorithm.server_update.batch_size"] = 32
    dataset = run.data.dataset
    if isinstance(dataset, fl.data.FashionMnist):
        dataset = fl.data.Mnist(standardise=dataset.standardise)
    return run.replace(
        {
            **changes,
            "data.dataset": fl.data.Subset(dataset=dataset, train=10000, test=1000),
            "data.server.n0": run.data.server.n0 // 10,
            "model": fl.CNN(channels=[16, 32], hidden=64),
            "rounds": 40,
            "replicates": 2,
            "eval_every": 5,
        }
    )


def smoke(run):
    """Return two rounds of a run, with a narrow network if it has convolutions."""
    run = two_rounds(run)
    if not isinstance(run.model, fl.CNN):
        return run
    channels = [4] * len(run.model.channels)
    return run.replace({"model.channels": channels, "model.hidden": 8})


SCALES = {"small": small, "smoke": smoke}
