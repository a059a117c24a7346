"""Accuracy against the share of enforced rounds, under arbitrary participation.

MNIST, logistic regression, 100 clients, ten a round, balanced Dirichlet(0.1), 300 rounds of one
epoch with batch 64 at rate 0.05. Who comes follows Beta(1, 10) or Gamma(10, 0.01) but for
snapshots: fixed shares q, and adaptive with lambda. FedAvg, and rivals that correct the weights
instead. Every algorithm sees the same cohorts. `arbitrary_ratio` is the share not enforced.
"""

import raysafl as fl
from experiments.fast.setting import policy

METHODS = {
    "FedAvg": fl.FedAvg(),
    "SCAFFOLD": fl.SCAFFOLD(),
    "MIFA": fl.MIFA(),
    "FedVARP": fl.FedVARP(),
    "FedAU": fl.FedAU(),
}
SHARES = (0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, "Ada.(1)", "Ada.(3)", "Ada.(7)")
BASE = fl.Run(
    data=fl.Federation(dataset=fl.Mnist(), clients=100, partition=fl.Dirichlet(alpha=0.1)),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=10),
    local=fl.LocalTraining(lr=0.05, batch_size=64, epochs=1),
    rounds=300,
    replicates=5,
)
SWEEP = fl.Sweep(
    name="pareto_enforced_rounds",
    title="Accuracy against enforced rounds, MNIST, 100 clients, Dirichlet(0.1)",
    axes=("participation", "method", "q"),
    runs={
        (name, method, q): BASE.replace(algorithm=algorithm, participation=policy(name, q, 10))
        for name in ("Beta", "Gamma")
        for method, algorithm in METHODS.items()
        for q in SHARES
    },
    table=fl.Table(
        rows=["participation", "method"],
        columns=["q"],
        panels=["participation"],
        statistic="last10",
        also=["final", "best", "arbitrary_ratio", "total_snapshots", "total_bytes"],
    ),
    claims=[
        fl.Claim(
            text="FAST: enforcing more rounds helps", order=[{"q": 0.5}, {"q": 0.1}, {"q": 0}]
        ),
        fl.Claim(
            text="FAST: half of the rounds nearly match uniform participation (1 %)",
            order=[{"q": 1}, {"q": 0.5}],
            within=1.0,
        ),
        *(
            fl.Claim(
                text=f"without snapshots {rival} is better than FedAvg",
                order=[{"method": rival}, {"method": "FedAvg"}],
                where={"q": 0},
            )
            for rival in ("SCAFFOLD", "MIFA", "FedVARP", "FedAU")
        ),
    ],
    notes=__doc__,
    scales={"small": lambda run: run.replace(rounds=40, replicates=2, eval_every=2)},
)
