"""Which algorithm copes with which participation? A factorial experiment on MNIST.

It is the experiment of `experiments/studies/factorial_small.py` at a larger scale: 12
algorithms, seven participation policies and two partitions. There are 100 clients. Ten
of them train in a round, where the policy leaves a choice. The model is logistic
regression, trained for 300 rounds of one local epoch with batch size 64 at rate 0.05.
The server holds 500 samples, which only SAFARI and FSL use. The reviewers of FAST
(docs/papers.md#fast) asked: is FAST better under the same arbitrary participation than
FedAU, MIFA and FedVARP, which correct the weights of the clients instead? FAST is the
row FedAvg in the columns with snapshots.

All algorithms share their seeds, and so their cohorts. Entries of one column are
therefore paired.

Run it with `raysafl run experiments/studies/factorial_mnist.py`. Its 168 entries with 3
seeds each take about 23 minutes of one core; with `--scale small` they take about 1
minute on two cores.
"""

import raysafl as fl
from experiments.papercheck.comparison import Claim, Comparison

BETA = fl.participation.Arbitrary(dist=fl.participation.Beta(), m=10)
UNIFORM = fl.Uniform(m=10)
ALGORITHMS = {
    "FedAvg": fl.FedAvg(),
    "FedProx": fl.algorithms.FedProx(prox=0.01),
    "FedAvgM": fl.algorithms.FedAvgM(momentum=0.9, lr=0.3),
    "SCAFFOLD": fl.algorithms.SCAFFOLD(),
    "FedDyn": fl.algorithms.FedDyn(alpha=0.1),
    "MIFA": fl.algorithms.MIFA(),
    "FedVARP": fl.algorithms.FedVARP(),
    "FedAU": fl.algorithms.FedAU(),
    "FedAmplify": fl.algorithms.FedAmplify(P=10, eta=1.5),
    "AFL": fl.algorithms.AFL(),
    "SAFARI": fl.SAFARI(
        client_prob=0.8,
        server_update=fl.LocalTraining(lr=0.05, batch_size=16, epochs=2),
    ),
    "FSL": fl.FSL(inner=fl.FedAvg(), gamma=1.0),
}
POLICIES = {
    "uniform": UNIFORM,
    "Beta(1, 10)": BETA,
    "Beta, q = 0.1": fl.Snapshot(base=BETA, uniform=UNIFORM, snapshot_prob=0.1),
    "Beta, q = 0.5": fl.Snapshot(base=BETA, uniform=UNIFORM, snapshot_prob=0.5),
    "Beta, adaptive": fl.Snapshot(base=BETA, uniform=UNIFORM, adapt=7.0),
    "Markov": fl.participation.Markov(mean=0.1, correlation=0.9, at_least_one=True),
    "cyclic": fl.participation.Cyclic(groups=10),
}
PARTITIONS = {
    "1 class": fl.ClassesPerClient(p=1),
    "Dirichlet(0.1)": fl.Dirichlet(alpha=0.1),
}
BASE = fl.Run(
    data=fl.Federation(
        dataset=fl.data.Mnist(),
        clients=100,
        partition=fl.ClassesPerClient(p=1),
        server=fl.IidServer(n0=500),
    ),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=UNIFORM,
    local=fl.LocalTraining(lr=0.05, batch_size=64, epochs=1),
    rounds=300,
    replicates=3,
    eval_every=2,
)
COMPARISON = Comparison(
    sweep=fl.Sweep(
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
        table=fl.Table(
            rows=["partition", "algorithm"],
            columns=["participation"],
            panels=["partition"],
            statistic="last10",
        ),
        notes=__doc__,
        scales={
            "small": lambda run: run.replace(rounds=40, replicates=2, eval_every=4)
        },
    ),
    claims=[
        Claim(
            text=(
                f"FAST (half of the rounds enforced) is better than {rival} without "
                "snapshots"
            ),
            order=[
                {"algorithm": "FedAvg", "participation": "Beta, q = 0.5"},
                {"algorithm": rival, "participation": "Beta(1, 10)"},
            ],
        )
        for rival in ("FedAU", "MIFA", "FedVARP")
    ],
)
SWEEP = COMPARISON.sweep
