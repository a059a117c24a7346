"""The workloads of the benchmarks: small public tasks, each as a `Run`.

W1 to W3 are FedAvg on MNIST and CIFAR-10. W4 is the row "LR/MNIST" of the README of
FLUTE (1,000 clients, 10 a round, batch size 10, learning rate 0.03). S1 is the MNIST
part of SAFARI's table 8. A workload without evaluation evaluates its last round only,
and that round is not timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from raysafl.algorithms import SAFARI, FedAvg
from raysafl.core.algorithm import LocalTraining
from raysafl.core.problem import Model
from raysafl.data import (
    ClassesPerClient,
    Digits,
    Federation,
    IidServer,
    Mnist,
    ParquetImages,
)
from raysafl.models import CNN, Logistic
from raysafl.participation import Absent, Uniform
from raysafl.simulation.run import Run

# By default glibc returns large buffers to the kernel and faults them in again. W2 uses
# large buffers throughout, so both sides run with these settings.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


@dataclass(frozen=True)
class Workload:
    """A run that is timed, and what is aimed at.

    Attributes:
        run: the configuration.
        target: the speed-up over the plain loop that is aimed at.
        env: environment variables for both sides of the comparison.
        half: whether the run is measured in bfloat16 as well.
    """

    run: Run
    target: float
    env: Mapping[str, str] = field(default_factory=dict)
    half: bool = False


class PflCifarNet(Model):
    """The network of pfl-research's benchmark (`benchmarks.pfl_cifar10`).

    It has two convolutions without padding, and one pooling after them.
    As there, weights are uniform by Glorot and biases are torch's.
    """

    def build(self, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """Build the module for images of one shape, [channels, height, width]."""
        depth, height, width = input_shape
        pixels = ((height - 4) // 2) * ((width - 4) // 2)
        net = nn.Sequential(
            nn.Conv2d(depth, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * pixels, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, num_classes),
        )
        for layer in net:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
        return net


def steady_rounds(run: Run) -> slice:
    """Return which rounds are timed.

    The first round is left out, and so is the last one where it alone is evaluated.
    """
    return slice(1, run.rounds - 1 if run.eval_every >= run.rounds else run.rounds)


def samples_per_round(run: Run, samples: int) -> float:
    """Return the number of training samples of an average round of one replicate.

    Args:
        run: the configuration, with uniform participation and local epochs.
        samples: the size of the training set, shared by all clients.
    """
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
        data=Federation(
            dataset=ParquetImages(path="cifar10", low=-1.0, high=1.0), clients=100
        ),
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
        dataset=Mnist(),
        clients=10,
        partition=ClassesPerClient(p=10),
        server=IidServer(n0=1000),
    ),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Absent(s=0, m=5),
    local=LocalTraining(lr=0.1, batch_size=64, epochs=1),
    rounds=150,
    replicates=5,
)
S1 = tuple(
    TABLE8.replace(
        {"algorithm": algorithm, "participation.s": s, "data.partition.p": p}
    )
    for s in (0, 2, 4)
    for algorithm in (FedAvg(), SAFARI_TABLE_8)
    for p in (10, 5, 2, 1)
)

# With one sample per client and 650 parameters, a round costs little but its own
# overhead.
EMPTY = Run(
    data=Federation(dataset=Digits(), clients=1437),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Uniform(m=2),
    local=LocalTraining(lr=0.1, batch_size=8, epochs=1),
    rounds=500,
    eval_every=500,
)
TRIVIAL = EMPTY.replace(rounds=1)

# Short trainings on embedded data. They are too few steps for small differences to grow.
SHORT = Run(
    data=Federation(dataset=Digits(), clients=10),
    model=Logistic(),
    algorithm=FedAvg(),
    participation=Uniform(m=4),
    local=LocalTraining(lr=0.05, batch_size=32, epochs=1),
    rounds=3,
    eval_every=3,
)
# The same for commands that are only tried (--dry).
TINY = SHORT.replace(eval_every=1)
