"""The workloads: small public tasks of other frameworks' comparisons, each as a `Run`.

W1 to W3 are FedAvg on MNIST and CIFAR-10; W4 is the LR/MNIST row of FLUTE's README (its config:
1,000 clients, 10 a round, batch 10, rate 0.03); S1 is the MNIST part of SAFARI's table 8.
Where a workload has no evaluation, the last round alone is evaluated, and it is not timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from raysafl.algorithms import SAFARI, FedAvg
from raysafl.core.algorithm import LocalTraining
from raysafl.data import ClassesPerClient, Digits, Federation, IidServer, Mnist, ParquetImages
from raysafl.models import CNN, Logistic
from raysafl.participation import Absent, Uniform
from raysafl.simulation.run import Run

# glibc gives large buffers back to the kernel and faults them in again; W2 is all large buffers
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True)
class Workload:
    """A run, the speed-up over the plain loop aimed at, and the environment of both.

    `half`: it is measured in bfloat16 as well.
    """

    run: Run
    target: float
    env: Mapping[str, str] = field(default_factory=dict)
    half: bool = False


def steady_rounds(run: Run) -> slice:
    """The timed rounds: all but the first, and but the last where that alone is evaluated."""
    return slice(1, run.rounds - 1 if run.eval_every >= run.rounds else run.rounds)


def samples_per_round(run: Run, samples: int) -> float:
    """Training samples of a mean round of one replicate: m clients of `samples` / M each."""
    assert isinstance(run.participation, Uniform) and run.local.epochs
    return run.participation.m * run.local.epochs * samples / run.data.clients


MNIST_LR = Run(
    data=Federation(dataset=Mnist(), clients=10),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Uniform(m=5),
    local=LocalTraining(lr=0.1, batch_size=64, epochs=1),
    rounds=30,
)
W1 = Workload(MNIST_LR, target=3.0)
W2 = Workload(
    Run(
        data=Federation(dataset=ParquetImages(path="cifar10", low=-1.0, high=1.0), clients=100),
        model=CNN(channels=[32, 64], hidden=128),
        algorithm=FedAvg(),
        participation=Uniform(m=10),
        local=LocalTraining(lr=0.05, batch_size=50, epochs=1),
        rounds=5,
    ),
    target=1.5,
    env=MALLOC,
    half=True,
)
W3 = Workload(
    MNIST_LR.replace(
        {
            "data.clients": 1000,
            "participation.m": 100,
            "local.batch_size": 20,
            "rounds": 20,
            "eval_every": 20,
        }
    ),
    target=5.0,
)
W4 = Workload(
    MNIST_LR.replace(
        {
            "data.clients": 1000,
            "participation.m": 10,
            "local.batch_size": 10,
            "local.lr": 0.03,
            "rounds": 100,
            "eval_every": 100,
        }
    ),
    target=5.0,
)
STANDARD = {"W1": W1, "W2": W2, "W3": W3, "W4": W4}

SAFARI_TABLE_8 = SAFARI(
    client_prob=0.8, server_update=LocalTraining(lr=0.1, batch_size=64, epochs=1)
)
TABLE8 = Run(
    data=Federation(
        dataset=Mnist(), clients=10, partition=ClassesPerClient(p=10), server=IidServer(n0=1000)
    ),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Absent(s=0, m=5),
    local=LocalTraining(lr=0.1, batch_size=64, epochs=1),
    rounds=150,
    replicates=5,
)
S1 = tuple(
    TABLE8.replace({"algorithm": algorithm, "participation.s": s, "data.partition.p": p})
    for s in (0, 2, 4)
    for algorithm in (FedAvg(), SAFARI)
    for p in (10, 5, 2, 1)
)

# one sample a client, 650 parameters: what is left of a round is what a round costs by itself
EMPTY = Run(
    data=Federation(dataset=Digits(), clients=1437),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Uniform(m=2),
    local=LocalTraining(lr=0.1, batch_size=8, epochs=1),
    rounds=500,
    eval_every=500,
)
TRIVIAL = tuple(EMPTY.replace(rounds=1, seed=seed) for seed in range(1000))
