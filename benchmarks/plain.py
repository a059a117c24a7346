"""The plain loop that raysafl is measured against: one process, one client after another.

It is what a careful user of PyTorch writes in an afternoon: samples as float tensors in
memory, one gather per batch, one `nn.Module` into which each client's parameters are
loaded, one `torch.optim.SGD`, and a running mean of the clients' parameters. It has no
DataLoader and makes no copies of the model.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysafl.core.problem import Dataset, Samples
from raysafl.core.randomness import Key
from raysafl.models import FlatModel
from raysafl.participation import Uniform
from raysafl.simulation.run import Run
from raysafl.training.device import allow_tf32

EVAL_BATCH = 1000


class Draws(NamedTuple):
    """The randomness of the plain loop.

    Attributes:
        cohort: maps the round to its clients.
        order: maps (round, client, n) to a permutation of the client's n samples.
    """

    cohort: Callable[[int], Sequence[int]]
    order: Callable[[int, int, int], Tensor]


def own_draws(run: Run) -> Draws:
    """Draw cohorts and orders from one generator each, as a plain script does."""
    assert isinstance(run.participation, Uniform)
    m = run.participation.m
    rng = np.random.default_rng(run.seed)
    shuffle = torch.Generator().manual_seed(run.seed)
    return Draws(
        lambda _: rng.choice(run.data.clients, m, replace=False).tolist(),
        lambda _round, _client, n: torch.randperm(n, generator=shuffle),
    )


class PlainLoop:
    """FedAvg with local epochs of plain SGD: the first replicate of a run.

    Samples, splits and parameters are on `device`; on a GPU a batch is gathered there.

    With `parts` > 1 this is one of `parts` processes that know nothing of each other.
    It trains every `parts`-th client of each cohort and evaluates on every `parts`-th
    test sample, so that together the processes do the arithmetic of one run.
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        draws: Draws | None = None,
        part: int = 0,
        parts: int = 1,
        device: str = "cpu",
    ) -> None:
        self.run = run
        self.draws = draws or own_draws(run)
        self.round = 0
        self.part = part
        self.parts = parts
        self.x, self.y = (column.to(device) for column in _floats(dataset.train))
        self.test_x, self.test_y = (
            column[part::parts].clone().to(device) for column in _floats(dataset.test)
        )
        self.held = [
            torch.from_numpy(h).to(device)
            for h in run.data.split(dataset, run.seed).clients
        ]
        shape = dataset.train.x.shape[1:]
        self.model = run.model.build(shape, dataset.num_classes)
        # Both sides start from the same initial parameters.
        w_P = FlatModel(run.model, shape, dataset.num_classes).init(Key(run.seed))
        nn.utils.vector_to_parameters(w_P, self.model.parameters())
        self.model.to(device)
        self.device = device
        # Both sides compute alike; by default torch rounds the factors of convolutions.
        allow_tf32(run.model.precision == "tf32")
        self.parameters = list(self.model.parameters())
        self.w = [p.detach().clone() for p in self.parameters]
        self.optimizer = torch.optim.SGD(self.parameters, run.local.lr)

    def step(self) -> float | None:
        """Run one round; return the test accuracy if the round is evaluated, else None."""
        cohort = list(self.draws.cohort(self.round))[self.part :: self.parts]
        total = [torch.zeros_like(w) for w in self.w]
        for client in cohort:
            self._load()
            self._train(client)
            for t, p in zip(total, self.parameters, strict=True):
                t += p.detach()
        self.w = [t / len(cohort) for t in total]
        self.round += 1
        due = self.round % self.run.eval_every == 0 or self.round == self.run.rounds
        return self.evaluate()[0] if due else None

    def _load(self) -> None:
        """Load the global parameters into the module."""
        with torch.no_grad():
            for p, w in zip(self.parameters, self.w, strict=True):
                p.copy_(w)

    def _train(self, client: int) -> None:
        """Take a client's local steps from the parameters that are loaded."""
        held = self.held[client]
        size = self.run.local.batch_size
        for _ in range(self.run.local.epochs or 1):
            order = held[
                self.draws.order(self.round, client, len(held)).to(self.device)
            ]
            for batch in order.split(size):
                self.optimizer.zero_grad()
                F.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
                self.optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Return accuracy and mean cross-entropy on this process's share of the test set."""
        self._load()
        correct = loss = 0.0
        batches = zip(
            self.test_x.split(EVAL_BATCH), self.test_y.split(EVAL_BATCH), strict=True
        )
        for x, y in batches:
            logits = self.model(x)
            correct += float((logits.argmax(-1) == y).sum())
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
        return correct / len(self.test_y), loss / len(self.test_y)


def _floats(samples: Samples) -> tuple[Tensor, Tensor]:
    """Return the inputs as scaled floats, computed once, and the labels."""
    x = torch.from_numpy(samples.x).to(torch.float32)
    return x.mul_(samples.scale).add_(samples.shift), torch.from_numpy(samples.y)
