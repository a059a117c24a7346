"""Problems whose minima and constants are known, and runs on them.

Each of N clients, and the server, has the same number of samples. The parameters w are one
vector of four numbers, which starts at zero.

`quadratic`: a sample is a point y, its loss 1/2 (w - y)^T D (w - y) with a diagonal matrix
D. So f_i has its minimum at the mean b_i of the client's points, and all that the theorems
assume holds everywhere, with

    L = max D,   mu = min D,   sigma^2 = mean |D (y - b_i)|^2 (mini-batches of one sample),
    sigma_G^2 = max_i |D (b_i - b)|^2,   G^2 = mean_i |D (b_i - b)|^2,   b = mean_i b_i.

`logistic`: a sample has an input x and a label y of -1 or 1, and the loss
log(1 + exp(-y w x)). Weight decay adds mu/2 |w|^2. Clients differ in inputs and labels, so
their curvatures differ too. The gradients differ by a bounded amount, but the least bound
sigma_G has no closed form.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import root
from scipy.special import expit

import raysafl as fl
from raysafl.simulation.simulation import Lockstep, Simulation
from raysafl.sweep.simulate import torch_threads, worker_of

D = np.array([0.25, 0.5, 0.75, 1.0])
L, MU = D.max(), D.min()
DECAY = 0.1


class Vector(fl.Model):
    """One linear layer without bias, which starts at zero."""

    def build(self, input_shape, num_classes):
        """Build the layer; on the input 1, its outputs are its parameters."""
        layer = torch.nn.Linear(*input_shape, num_classes, bias=False)
        torch.nn.init.zeros_(layer.weight)
        return layer


class QuadraticLoss(fl.Objective):
    """The loss 1/2 (w - y)^T D (w - y) of each sample."""

    def losses(self, outputs, targets):
        """Return the losses [B] of outputs and targets [B, 4]."""
        return (outputs - targets).square() @ torch.tensor(D, dtype=torch.float32) / 2


class LogisticLoss(fl.Objective):
    """The loss log(1 + exp(-y w x)) of each sample."""

    def losses(self, outputs, targets):
        """Return the losses [B] of outputs and targets [B, 1]."""
        return F.softplus(-outputs * targets)[:, 0]


class LastRows(fl.data.ServerData):
    """The server holds the last n0 training samples, and no client does."""

    n0: int

    def draw(self, labels, num_classes, rng):
        """Return the last n0 positions."""
        return np.arange(len(labels) - self.n0, len(labels))


@dataclass(frozen=True)
class Problem:
    """Samples of N clients and, as the last of N + 1 holders, of the server.

    Args:
        x: the inputs [n, inputs] of each holder.
        y: the targets [n, outputs] of each holder.
        objective: the loss of a sample.
        gradients: maps w [..., 4] to the holders' full gradients [..., N + 1, 4].
        decay: the weight decay of the clients and of the server.
    """

    x: list
    y: list
    objective: fl.Objective
    gradients: Callable
    decay: float = 0.0

    @property
    def clients(self):
        """Return the number N of clients."""
        return len(self.x) - 1

    def minimum(self, weight_N, server=0.0):
        """Return the minimum of the clients' and the server's objectives in these weights.

        The server's is without weight decay, since the server of `FSL` trains without it.
        """
        weights = np.append(weight_N, server)

        def gradient(w):
            return weights @ self.gradients(w) - server * self.decay * w

        return root(gradient, np.zeros(4), tol=1e-12).x

    @property
    def optimum(self):
        """Return the minimum of F, in which all clients weigh the same."""
        return self.minimum(np.ones(self.clients))

    def local(self, lr, steps=1, holder=0, batch_size=None):
        """Return a training of some steps, by default on all of a holder's samples."""
        return fl.LocalTraining(
            lr=lr,
            steps=steps,
            batch_size=batch_size or len(self.x[holder]),
            weight_decay=self.decay,
        )

    def run(self, **fields):
        """Return a run on this problem; unless told otherwise, FedAvg with all clients."""
        sizes = [len(part) for part in self.x]
        source = fl.from_arrays(
            np.concatenate(self.x).astype(np.float32),
            np.concatenate(self.y).astype(np.float32),
            test=(np.ones_like(self.x[0][:1]), np.ones_like(self.y[0][:1])),
            clients=np.repeat(np.arange(len(sizes)) % self.clients, sizes),
            target="number",
        )
        data = fl.Federation(
            dataset=source,
            clients=self.clients,
            partition=fl.ByColumn(column="client"),
            server=LastRows(n0=sizes[-1]),
        )
        usual = {
            "data": data,
            "model": Vector(),
            "objective": self.objective,
            "algorithm": fl.FedAvg(),
            "participation": fl.participation.Full(),
            "eval_every": fields["rounds"],
        }
        return fl.Run(**usual | fields)


def quadratic(b, b0=None, noise=0.0, samples=1):
    """Return a quadratic problem.

    Args:
        b: the clients' minima [N, 4].
        b0: the server's; None: their mean, so that the server's gradient is that of F.
        noise: the standard deviation of each coordinate of a sample.
        samples: the number of samples of each client; they deviate alike everywhere.
    """
    e = np.random.default_rng(1).normal(size=(samples, 4))
    e -= e.mean(0)
    if noise:
        e *= noise / e.std(0)
    centres = np.vstack([b, b.mean(0) if b0 is None else b0])
    return Problem(
        [np.ones((samples, 1))] * len(centres),
        [centre + e for centre in centres],
        QuadraticLoss(),
        lambda w: D * (w[..., None, :] - centres),
    )


def logistic(clients, samples=40, own_server=False):
    """Return a logistic problem.

    Args:
        clients: the number N of clients.
        samples: the number of samples of each.
        own_server: whether the server has samples of its own kind, as a further client
            would; otherwise it holds all clients' samples, so that its objective is F.
    """
    rng = np.random.default_rng(2)
    x, y = [], []
    for _ in range(clients + 1):
        inputs = rng.normal(size=(samples, 4)) + rng.normal(size=4)
        true = 1 + rng.normal(size=(4, 1))
        x.append(inputs)
        y.append(np.where(rng.random((samples, 1)) < expit(inputs @ true), 1.0, -1.0))
    if not own_server:
        x[-1], y[-1] = np.concatenate(x[:-1]), np.concatenate(y[:-1])

    def gradients(w):
        w = w[..., None, :]
        rows = [
            -(expit(-(w @ (b * a).T)) @ (b * a) / len(a))[..., 0, :]
            for a, b in zip(x, y, strict=True)
        ]
        return np.stack(rows, -2) + DECAY * w

    return Problem(x, y, LogisticLoss(), gradients, DECAY)


def follow(runs):
    """Carry out runs on one problem together, in this process and with one thread.

    Args:
        runs: the runs, by any name.

    Returns:
        By name, the parameters [rounds + 1, replicates, 4] before the first round and
        after each one.
    """
    first = next(iter(runs.values()))
    with torch_threads(1):
        work = worker_of(list(runs.values()), first.data.load())
        lockstep, cells, simulations = Lockstep(work), 0, {}
        for name, run in runs.items():
            simulations[name] = Simulation(run, work, cells)
            cells += run.replicates
        found = {name: [_parameters(one)] for name, one in simulations.items()}
        while open_ones := {k: s for k, s in simulations.items() if not s.done}:
            for outcome in lockstep.advance(open_ones).values():
                if isinstance(outcome, BaseException):
                    raise outcome
            for name, simulation in open_ones.items():
                found[name].append(_parameters(simulation))
    return {name: np.stack(rows) for name, rows in found.items()}


def _parameters(simulation):
    return np.stack([r.state.w_P.double().numpy() for r in simulation.replicates])
