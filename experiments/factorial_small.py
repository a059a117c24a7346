"""Which algorithm stands which participation? 8 algorithms x 6 policies x 2 partitions on digits.

20 clients, 5 a round where the policy lets one choose; the server holds 100 samples, which only
SAFARI and FSL use. Asked by FAST's reviewers: do snapshots help under the same arbitrary
participation more than FedAU, MIFA and FedVARP, which correct the weights instead?

Every algorithm sees the same cohorts (the same seeds), so cells of one column are paired.
"""

from raysafl import (
    FSL,
    MIFA,
    SAFARI,
    SCAFFOLD,
    Arbitrary,
    Beta,
    ClassesPerClient,
    Cyclic,
    Digits,
    Dirichlet,
    FedAU,
    FedAvg,
    FedDyn,
    Federation,
    FedVARP,
    IidServer,
    LocalTraining,
    Logistic,
    Markov,
    Run,
    Snapshot,
    Sweep,
    Table,
    Uniform,
)

BETA = Arbitrary(dist=Beta(), m=5)
ALGORITHMS = {
    "FedAvg": FedAvg(),
    "SCAFFOLD": SCAFFOLD(),
    "FedDyn": FedDyn(alpha=0.1),
    "MIFA": MIFA(),
    "FedVARP": FedVARP(),
    "FedAU": FedAU(),
    "SAFARI": SAFARI(client_prob=0.8, server_update=LocalTraining(lr=0.1, batch_size=16, epochs=5)),
    "FSL": FSL(inner=FedAvg(), gamma=1.0),
}
POLICIES = {
    "uniform": Uniform(m=5),
    "Beta(1, 10)": BETA,
    "Beta, half snapshots": Snapshot(base=BETA, uniform=Uniform(m=5), snapshot_prob=0.5),
    "Beta, adaptive": Snapshot(base=BETA, uniform=Uniform(m=5), adapt=1.0),
    "Markov": Markov(mean=0.25, correlation=0.9),
    "cyclic": Cyclic(groups=4),
}
PARTITIONS = {"1 class": ClassesPerClient(p=1), "Dirichlet(0.1)": Dirichlet(alpha=0.1)}
BASE = Run(
    data=Federation(
        dataset=Digits(), clients=20, partition=ClassesPerClient(p=1), server=IidServer(n0=100)
    ),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Uniform(m=5),
    local=LocalTraining(lr=0.1, batch_size=16, epochs=1),
    rounds=60,
    replicates=3,
    eval_every=2,
)
SWEEP = Sweep(
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
    table=Table(
        rows=["partition", "algorithm"],
        columns=["participation"],
        panels=["partition"],
        statistic="last10",
    ),
    notes=__doc__,
)
