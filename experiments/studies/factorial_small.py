"""Which algorithm copes with which participation? A factorial experiment on digits.

Eight algorithms, six participation policies and two partitions of the embedded digits
are combined. There are 20 clients. Five of them train in a round, where the policy
leaves a choice. The server holds 100 samples, which only SAFARI and FSL use. The
reviewers of FAST (docs/papers.md#fast) asked: do snapshots help more under the same
arbitrary participation than FedAU, MIFA and FedVARP, which correct the weights of the
clients instead?

All algorithms share their seeds, and so their cohorts. Entries of one column are
therefore paired.

Run it with `raysafl run experiments/studies/factorial_small.py`. Its 96 entries with 3
seeds each need no data folder and take about 1 minute of one core.
"""

import raysafl as fl

BETA = fl.participation.Arbitrary(dist=fl.participation.Beta(), m=5)
ALGORITHMS = {
    "FedAvg": fl.FedAvg(),
    "SCAFFOLD": fl.algorithms.SCAFFOLD(),
    "FedDyn": fl.algorithms.FedDyn(alpha=0.1),
    "MIFA": fl.algorithms.MIFA(),
    "FedVARP": fl.algorithms.FedVARP(),
    "FedAU": fl.algorithms.FedAU(),
    "SAFARI": fl.SAFARI(
        client_prob=0.8, server_update=fl.LocalTraining(lr=0.1, batch_size=16, epochs=5)
    ),
    "FSL": fl.FSL(inner=fl.FedAvg(), gamma=1.0),
}
POLICIES = {
    "uniform": fl.Uniform(m=5),
    "Beta(1, 10)": BETA,
    "Beta, half snapshots": fl.Snapshot(
        base=BETA, uniform=fl.Uniform(m=5), snapshot_prob=0.5
    ),
    "Beta, adaptive": fl.Snapshot(base=BETA, uniform=fl.Uniform(m=5), adapt=1.0),
    "Markov": fl.participation.Markov(mean=0.25, correlation=0.9, at_least_one=True),
    "cyclic": fl.participation.Cyclic(groups=4),
}
PARTITIONS = {
    "1 class": fl.ClassesPerClient(p=1),
    "Dirichlet(0.1)": fl.Dirichlet(alpha=0.1),
}
BASE = fl.Run(
    data=fl.Federation(
        dataset=fl.Digits(),
        clients=20,
        partition=fl.ClassesPerClient(p=1),
        server=fl.IidServer(n0=100),
    ),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=5),
    local=fl.LocalTraining(lr=0.1, batch_size=16, epochs=1),
    rounds=60,
    replicates=3,
    eval_every=2,
)
SWEEP = fl.Sweep(
    name="factorial_small",
    title="Algorithms against participation on digits, 20 clients, 60 rounds",
    axes=("partition", "algorithm", "participation"),
    runs={
        (partition, algorithm, policy): BASE.replace(
            {
                "data.partition": PARTITIONS[partition],
                "algorithm": ALGORITHMS[algorithm],
                "participation": POLICIES[policy],
            }
        )
        for partition in PARTITIONS
        for algorithm in ALGORITHMS
        for policy in POLICIES
    },
    table=fl.Table(
        rows=["partition", "algorithm"],
        columns=["participation"],
        panels=["partition"],
        statistic="last10",
    ),
    notes=__doc__,
)
