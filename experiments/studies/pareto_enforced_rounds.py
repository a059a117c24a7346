"""Accuracy against the share of enforced rounds, under arbitrary participation.

A snapshot is a round whose cohort is enforced: it is drawn uniformly, and not by the
arbitrary participation, which is Beta(1, 10) or Gamma(10, 0.01) here. FAST
(docs/papers.md#fast) is FedAvg with snapshots. The sweep varies the probability q of a
snapshot, and the strength lambda of adaptive FAST, and compares FedAvg with algorithms
that correct the weights of the clients instead. There are 100 clients of MNIST, ten of
them a round, a balanced Dirichlet(0.1) partition, and logistic regression, trained for
300 rounds of one local epoch with batch size 64 at rate 0.05. All algorithms share
their seeds, and so their cohorts. `arbitrary_ratio` is the percentage of rounds in
which clients train and that are not enforced.

Run it with `raysafl run experiments/studies/pareto_enforced_rounds.py`. Its 110 entries
with 5 seeds each take about 34 minutes of one core; with `--scale small` they take
about 1 minute on two cores.
"""

import raysafl as fl
from experiments.fast.setting import participation_policy
from experiments.papercheck.comparison import Claim, Comparison

METHODS = {
    "FedAvg": fl.FedAvg(),
    "SCAFFOLD": fl.algorithms.SCAFFOLD(),
    "MIFA": fl.algorithms.MIFA(),
    "FedVARP": fl.algorithms.FedVARP(),
    "FedAU": fl.algorithms.FedAU(),
}
SNAPSHOT_PROBS = (0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, "Ada.(1)", "Ada.(3)", "Ada.(7)")
BASE = fl.Run(
    data=fl.Federation(
        dataset=fl.data.Mnist(), clients=100, partition=fl.Dirichlet(alpha=0.1)
    ),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=10),
    local=fl.LocalTraining(lr=0.05, batch_size=64, epochs=1),
    rounds=300,
    replicates=5,
)
COMPARISON = Comparison(
    sweep=fl.Sweep(
        name="pareto_enforced_rounds",
        title="Accuracy against enforced rounds, MNIST, 100 clients, Dirichlet(0.1)",
        axes=("participation", "method", "q"),
        runs={
            (name, method, q): BASE.replace(
                algorithm=algorithm, participation=participation_policy(name, q, 10)
            )
            for name in ("Beta", "Gamma")
            for method, algorithm in METHODS.items()
            for q in SNAPSHOT_PROBS
        },
        table=fl.Table(
            rows=["participation", "method"],
            columns=["q"],
            panels=["participation"],
            statistic="last10",
            also=["final", "best", "arbitrary_ratio", "total_snapshots", "total_bytes"],
        ),
        notes=__doc__,
        scales={
            "small": lambda run: run.replace(rounds=40, replicates=2, eval_every=2)
        },
    ),
    claims=[
        Claim(
            text="FAST: enforcing more rounds helps",
            order=[{"q": 0.5}, {"q": 0.1}, {"q": 0}],
        ),
        Claim(
            text="FAST: half of the rounds nearly match uniform participation (1 %)",
            order=[{"q": 1}, {"q": 0.5}],
            within=1.0,
        ),
        *(
            Claim(
                text=f"without snapshots {rival} is better than FedAvg",
                order=[{"method": rival}, {"method": "FedAvg"}],
                where={"q": 0},
            )
            for rival in ("SCAFFOLD", "MIFA", "FedVARP", "FedAU")
        ),
    ],
)
SWEEP = COMPARISON.sweep
