"""The server's own data D0: drawn before the clients' share, from clients, or from outside."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from raysafl.core.client_indices import Ints
from raysafl.core.component import Component
from raysafl.core.problem import Dataset, Samples

NOTHING = np.empty(0, np.int64)


class ServerData(Component):
    """A way to get D0. Override one of the three methods in your own file to bring your own."""

    abstract: ClassVar[bool] = True

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Positions in `labels` that no client gets. Raises ValueError if impossible."""
        return NOTHING

    def collect(
        self, clients: Sequence[Ints], rng: np.random.Generator
    ) -> tuple[Ints, Sequence[Ints]]:
        """Samples taken from the clients, and what these hold afterwards."""
        return NOTHING, clients

    def outside(self, dataset: Dataset) -> Samples | None:
        """Samples that are not in the dataset, in the form of its training samples."""
        return None


class DrawnServer(ServerData):
    """n0 samples of the training set, which no client holds. Define `draw`."""

    abstract: ClassVar[bool] = True
    n0: int = Field(gt=0)

    @abstractmethod
    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """n0 positions in `labels`, without replacement. Raises ValueError if impossible."""

    def check(self, available: int) -> None:
        """Raise ValueError if there are too few samples to draw from."""
        if self.n0 >= available:
            raise ValueError(
                f"server data of n0 = {self.n0} samples leaves no client data: the training set "
                f"has {available}; choose n0 below that"
            )


class IidServer(DrawnServer):
    """n0 samples drawn uniformly (SAFARI: "auxiliary dataset T i.i.d. from P")."""

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """A uniform draw over all samples."""
        self.check(len(labels))
        return np.sort(rng.choice(len(labels), self.n0, replace=False))


class StratifiedServer(DrawnServer):
    """n0 samples, equally many of each class; a remainder goes to random classes."""

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """n0 // classes of each class, and one more of n0 % classes of them."""
        self.check(len(labels))
        extra = rng.permutation(num_classes) < self.n0 % num_classes
        parts = []
        for c in range(num_classes):
            pool = np.flatnonzero(labels == c)
            want = self.n0 // num_classes + int(extra[c])
            if want > len(pool):
                raise ValueError(
                    f"stratified server data needs {want} samples of class {c}, but there are "
                    f"{len(pool)}; choose a smaller n0 or IidServer"
                )
            parts.append(rng.choice(pool, want, replace=False))
        return np.sort(np.concatenate(parts))


class FromClients(ServerData):
    """per_client random samples from each of c random clients (FSL, scenario 2a).

    FSL draws the clients once, before training. By default the server gets copies, and clients
    keep their samples: in FSL's CIFAR-10 setting a client holds 50 and gives 50. With
    `copies=False` what is given is gone.
    """

    c: int = Field(gt=0)
    per_client: int = Field(gt=0)
    copies: bool = True

    def collect(
        self, clients: Sequence[Ints], rng: np.random.Generator
    ) -> tuple[Ints, Sequence[Ints]]:
        """n0 = c * per_client samples, without replacement; as skewed as the clients are."""
        if self.c > len(clients):
            raise ValueError(
                f"server data from c = {self.c} clients, but there are {len(clients)}; lower c"
            )
        givers = np.sort(rng.choice(len(clients), self.c, replace=False))
        given, left = [], {}
        for i in givers.tolist():
            own = clients[i]
            held = len(own)
            if self.per_client > held or (self.per_client == held and not self.copies):
                rest = "" if self.copies else " and must keep one (copies=False)"
                raise ValueError(
                    f"client {i} cannot give per_client = {self.per_client} samples: it holds "
                    f"{held}{rest}; lower per_client"
                )
            given.append(np.sort(rng.choice(own, self.per_client, replace=False)))
            left[i] = np.setdiff1d(own, given[-1], assume_unique=True)
        if self.copies:
            return np.concatenate(given), clients
        return np.concatenate(given), [left.get(i, own) for i, own in enumerate(clients)]
