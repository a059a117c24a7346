"""The settings of papers' experiments, as runs to start from.

    from experiments import authors
    SWEEP = fl.Sweep(name="mine", runs=[authors.f3ast().replace(rounds=100)])

A function for each paper returns its `fl.Run`, with the constants that we know of the paper
or of its authors' program. Its docstring says what it does not know, and what we took there;
numbers of such a run are not those of the paper. Whole tables of SAFARI, FSL, FAST and
FedAWE, with what these papers print, are in the folders beside this file.

There is no function for FedAU, MIFA, FedVARP, FedLaAvg and Debiased FedAvg, of whose
experiments we know too few constants, nor for power-of-choice and Oort.
"""

import math

import numpy as np
from torch import nn

import raysafl as fl
from experiments.fedawe.table2_cifar10 import entry_run
from experiments.tools.datasets import cifar10
from raysafl import participation
from raysafl.algorithms import Key


def fedawe(availability="stationary"):
    """Return FedAWE's run on CIFAR-10 (docs/papers.md#fedawe), an entry of its table 2.

    The table's file says what the paper and its authors' program have.

    Args:
        availability: "stationary", "staircase", "sine", "interleaved", "sine-0.2" or
            "sine-0.1".
    """
    return entry_run("FedAWE", availability)


def focus():
    """Return FOCUS's run (docs/papers.md#focus), as its authors' program has it.

    K = 3 gradients a round, of which the last one moves no client. Nine tenths of the
    clients are available with a rate from U(0.1, 0.3), and the others with one from
    U(0.1, 0.9).

    Not known to us: the dataset, the network, the number of seeds, and which clients have
    which rates. We took CIFAR-10, `LeNet` and three seeds, for all of which the rates are
    drawn once, the last clients' from U(0.1, 0.9).
    """
    clients = 32
    highest_N = np.where(np.arange(clients) < 0.9 * clients, 0.3, 0.9)
    rate_N = Key(0)("rates").uniform(0.1, highest_N)
    return fl.Run(
        data=fl.Federation(
            dataset=cifar10(), clients=clients, partition=fl.Dirichlet(alpha=0.05)
        ),
        model=fl.models.LeNet(),
        algorithm=fl.algorithms.FOCUS(),
        participation=participation.Bernoulli(rate=rate_N.tolist()),
        local=fl.LocalTraining(lr=0.002, batch_size=128, steps=2),
        rounds=10_000,
        replicates=3,
        eval_every=50,
    )


class TwoConvolutions(fl.Model):
    """Two 5x5 convolutions of 64 channels with stride 2, each with a ReLU, and the logits."""

    def build(self, input_shape, num_classes):
        """Build the module for images of one shape, whose sides are halved twice."""
        depth, *sides = input_shape
        return nn.Sequential(
            *(nn.Conv2d(depth, 64, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten()),
            nn.Linear(64 * math.prod((side + 3) // 4 for side in sides), num_classes),
        )


PERIOD = 50
# The methods of Amplified SCAFFOLD's table on CIFAR-10, and their rates.
AMPLIFIED = {
    "FedAvg": (fl.FedAvg(), 1e-5),
    "FedProx": (fl.algorithms.FedProx(prox=0.01), 1e-5),
    "SCAFFOLD": (fl.algorithms.SCAFFOLD(), 1e-4),
    "Amplified FedAvg": (fl.algorithms.FedAmplify(P=PERIOD, eta=3.0), 3.33e-5),
    "Amplified SCAFFOLD": (
        fl.algorithms.AmplifiedSCAFFOLD(P=PERIOD, gamma=1.5),
        6.67e-4,
    ),
}


def amplified_scaffold(method="Amplified SCAFFOLD"):
    """Return Amplified SCAFFOLD's run on CIFAR-10 (docs/papers.md#amplified-scaffold).

    Each fifth of the clients is available for a fifth of a period of 50 rounds, and 10 of
    them participate. The first turn begins at a random place of the period. A round has 5
    local steps, and a run 60,000.

    Not known to us: the batch size, the partition, and the padding of the network. We took
    32, Dirichlet(0.1), by which the labels of a fifth differ from all labels by chance
    alone, and 2 pixels.

    Args:
        method: A name in `AMPLIFIED`. The authors tuned the rates of each method.
    """
    algorithm, lr = AMPLIFIED[method]
    return fl.Run(
        data=fl.Federation(
            dataset=cifar10(), clients=250, partition=fl.Dirichlet(alpha=0.1)
        ),
        model=TwoConvolutions(),
        algorithm=algorithm,
        participation=participation.Cyclic(
            groups=5, length=PERIOD // 5, offset="random", m=10
        ),
        local=fl.LocalTraining(lr=lr, batch_size=32, steps=5),
        rounds=12_000,
        replicates=5,
        eval_every=PERIOD,
    )


def cafed():
    """Return CA-Fed's run (docs/papers.md#ca-fed), as its authors' program has it.

    Each client is a Markov chain that is on in 0.5 + 0.4 or 0.5 - 0.4 of the rounds, with
    the correlation 0.9.

    Not known to us: of which of the datasets these constants are, the partition, the
    number of seeds, and which clients are on more often. We took logistic regression on
    MNIST, Dirichlet(0.1), three seeds, and the first half of the clients. The program
    begins with 100 rounds of the clients' true probabilities, which a server does not
    know; here the prior is that of `CAFed`.
    """
    clients = 24
    return fl.Run(
        data=fl.Federation(
            dataset=fl.data.Mnist(),
            clients=clients,
            partition=fl.Dirichlet(alpha=0.1),
        ),
        model=fl.Logistic(),
        algorithm=fl.algorithms.CAFed(lr=0.1),
        participation=participation.Markov(
            mean=[0.9] * (clients // 2) + [0.1] * (clients // 2), correlation=0.9
        ),
        local=fl.LocalTraining(lr=0.001, batch_size=64, steps=2),
        rounds=150,
        replicates=3,
    )


def f3ast():
    """Return F3AST's run on CIFAR-100 (docs/papers.md#f3ast), as its authors' program has it.

    Client i is available in round t with the probability q_i f(t), where q_i is lognormal
    relative to the largest, and f has the values 0.4 sin(x) + 0.5 at 24 points x from 0 to
    2 pi, both ends included. The server's rate 3.162 is that of the program, which divides
    by m.

    Not known to us: how the images are spread, the number of seeds, and whether q_i differs
    between them. We took 500 clients, Dirichlet(0.1), three seeds, and q_i drawn once, with
    s = 0.5. The program crops images to 24x24 pixels; ours keep their size, and are cropped
    after a padding of 4.
    """
    clients = 500
    largest = participation.RelativeLogNormal(s=0.5)
    hours = 0.4 * np.sin(np.linspace(0, 2 * np.pi, 24)) + 0.5
    return fl.Run(
        data=fl.Federation(
            dataset=fl.data.Augmented(dataset=fl.data.Cifar100(standardise=True)),
            clients=clients,
            partition=fl.Dirichlet(alpha=0.1),
        ),
        model=fl.models.ResNet18(),
        algorithm=fl.algorithms.F3AST(m=10, beta=0.001, lr=3.162, divided_by_m=True),
        participation=participation.Varying(
            base=largest.rates(clients, Key(0)("rates")).tolist(),
            factor=participation.Steps(values=hours.tolist(), length=1),
        ),
        local=fl.LocalTraining(lr=0.1, batch_size=20, epochs=1),
        rounds=1000,
        replicates=3,
        eval_every=10,
    )
