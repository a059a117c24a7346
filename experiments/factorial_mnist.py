"""Which algorithm stands which participation? The factorial of factorial_small.py on MNIST.

100 clients, ten a round where the policy lets one choose, logistic regression, 300 rounds of one
epoch with batch 64 at rate 0.05; the server holds 500 samples, which only SAFARI and FSL use.
Asked by FAST's reviewers: does FAST do better under the same arbitrary participation than FedAU,
MIFA and FedVARP, which correct the weights instead? FAST is FedAvg in the columns with snapshots.

Every algorithm sees the same cohorts (the same seeds), so cells of one column are paired.
"""

from raysafl import (
    AFL,
    FSL,
    MIFA,
    SAFARI,
    SCAFFOLD,
    Arbitrary,
    Beta,
    Claim,
    ClassesPerClient,
    Cyclic,
    Dirichlet,
    FedAmplify,
    FedAU,
    FedAvg,
    FedAvgM,
    FedDyn,
    Federation,
    FedProx,
    FedVARP,
    IidServer,
    LocalTraining,
    Logistic,
    Markov,
    Mnist,
    Run,
    Snapshot,
    Sweep,
    Table,
    Uniform,
)

BETA, UNIFORM = Arbitrary(dist=Beta(), m=10), Uniform(m=10)
ALGORITHMS = {
    "FedAvg": FedAvg(),
    "FedProx": FedProx(mu=0.01),
    "FedAvgM": FedAvgM(momentum=0.9, lr=0.3),
    "SCAFFOLD": SCAFFOLD(),
    "FedDyn": FedDyn(alpha=0.1),
    "MIFA": MIFA(),
    "FedVARP": FedVARP(),
    "FedAU": FedAU(),
    "FedAmplify": FedAmplify(P=10, eta=1.5),
    "AFL": AFL(),
    "SAFARI": SAFARI(
        client_prob=0.8, server_update=LocalTraining(lr=0.05, batch_size=16, epochs=2)
    ),
    "FSL": FSL(inner=FedAvg(), gamma=1.0),
}
POLICIES = {
    "uniform": UNIFORM,
    "Beta(1, 10)": BETA,
    "Beta, q = 0.1": Snapshot(base=BETA, uniform=UNIFORM, snapshot_prob=0.1),
    "Beta, q = 0.5": Snapshot(base=BETA, uniform=UNIFORM, snapshot_prob=0.5),
    "Beta, adaptive": Snapshot(base=BETA, uniform=UNIFORM, adapt=7.0),
    "Markov": Markov(mean=0.1, correlation=0.9),
    "cyclic": Cyclic(groups=10),
}
PARTITIONS = {"1 class": ClassesPerClient(p=1), "Dirichlet(0.1)": Dirichlet(alpha=0.1)}
BASE = Run(
    data=Federation(
        dataset=Mnist(), clients=100, partition=ClassesPerClient(p=1), server=IidServer(n0=500)
    ),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=UNIFORM,
    local=LocalTraining(lr=0.05, batch_size=64, epochs=1),
    rounds=300,
    replicates=3,
    eval_every=2,
)
SWEEP = Sweep(
    name="factorial_mnist",
    title="Algorithms against participation on MNIST, 100 clients, 300 rounds",
    axes=("partition", "algorithm", "participation"),
    runs={
        (partition, algorithm, name): BASE.replace(
            {
                "data.partition": PARTITIONS[partition],
                "algorithm": ALGORITHMS[algorithm],
                "participation": POLICIES[name],
            }
        )
        for partition in PARTITIONS
        for algorithm in ALGORITHMS
        for name in POLICIES
    },
    table=Table(
        rows=["partition", "algorithm"],
        columns=["participation"],
        panels=["partition"],
        statistic="last10",
    ),
    claims=[
        Claim(
            text=f"FAST (half of the rounds enforced) is better than {rival} without snapshots",
            order=[
                {"algorithm": "FedAvg", "participation": "Beta, q = 0.5"},
                {"algorithm": rival, "participation": "Beta(1, 10)"},
            ],
        )
        for rival in ("FedAU", "MIFA", "FedVARP")
    ],
    notes=__doc__,
    scales={"small": lambda run: run.replace(rounds=40, replicates=2, eval_every=4)},
)
