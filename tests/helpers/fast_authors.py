"""What FAST's published code does, written from a description of it and not from raysafl.

A client has one optimizer object of torch and one pass over its samples, in their order.
Each participation copies the server's model, trains up to K mini-batches and stops where
the pass ends; the next participation goes on with the pass, or begins a new one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AuthorsClient:
    """One client, which keeps its optimizer and its pass for its whole life.

    Args:
        module: its copy of the model.
        optimizer: a torch optimizer of the module's parameters.
        x: its inputs.
        y: their classes.
        batch_size: samples per mini-batch.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        y: Tensor,
        batch_size: int,
    ) -> None:
        self.module = module
        self.optimizer = optimizer
        self.x, self.y, self.batch_size = x, y, batch_size
        self.batches: Iterator[tuple[Tensor, Tensor]] = iter(())
        self.is_within = False
        self.hits = self.seen = 0

    def participate(self, w_P: Tensor, most: int) -> tuple[Tensor, float]:
        """Train up to so many mini-batches; return the end and the running accuracy."""
        nn.utils.vector_to_parameters(w_P.clone(), self.module.parameters())
        if not self.is_within:
            size = self.batch_size
            parts = zip(self.x.split(size), self.y.split(size), strict=True)
            self.batches = iter(list(parts))
            self.hits = self.seen = 0
        self.is_within = True
        for _ in range(most):
            batch = next(self.batches, None)
            if batch is None:
                break
            x, y = batch
            self.optimizer.zero_grad()
            out = self.module(x)
            F.cross_entropy(out, y).backward()
            self.optimizer.step()
            self.hits += int((out.argmax(1) == y).sum())
            self.seen += len(y)
        if self.seen == len(self.y):
            self.is_within = False
        end_P = nn.utils.parameters_to_vector(self.module.parameters()).detach()
        return end_P, self.hits / self.seen


# A draw of each distribution, with numpy's legacy generator.
DRAWS: dict[str, Callable[[np.random.RandomState], float]] = {
    "Beta": lambda legacy: legacy.beta(1, 10),
    "Gamma": lambda legacy: legacy.gamma(10, 0.01),
    "Weibull": lambda legacy: legacy.weibull(10) / 1.2,
}


def cohort(name: str, legacy: np.random.RandomState) -> list[int]:
    """Ten of a hundred clients: a draw, times 100, cut; again if it is taken or too high."""
    chosen: list[int] = []
    while len(chosen) < 10:
        index = int(DRAWS[name](legacy) * 100)
        if index < 100 and index not in chosen:
            chosen.append(index)
    return chosen


def comings(name: str, rounds: int, seed: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Who of a hundred clients comes in each round, [rounds, 100]."""
    legacy = np.random.RandomState(seed)
    came = np.zeros((rounds, 100), bool)
    for row in came:
        row[cohort(name, legacy)] = True
    return came
