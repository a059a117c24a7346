"""The server's own data D0: drawn from the training set, or collected from clients."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import Field

from raysafl.core.client_indices import Ints
from raysafl.core.component import Component
from raysafl.core.problem import Dataset, Samples
from raysafl.data.partitions import even_counts

NOTHING = np.empty(0, np.int64)


class ServerData(Component):
    """How the server gets its data D0. Subclass it and override one of the three methods.

    Attributes:
        needs_classes: Whether each sample must have one class. A federation then
            refuses data with other targets, such as numbers.

    Example:
        >>> import numpy as np
        >>> import raysafl as fl
        >>> labels = np.array([0, 0, 0, 1, 1, 1])
        >>> rows = fl.data.StratifiedServer(n0=2).draw(labels, 2, np.random.default_rng(0))
        >>> labels[rows].tolist()
        [0, 1]
    """

    abstract: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = False

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw positions in `labels` that become the server's and that no client gets.

        Args:
            labels: the class of each training sample, [S]; if `needs_classes` is not
                set, any targets, [S, ...].
            num_classes: the number of classes; 0 if there are none.
            rng: the only source of randomness.

        Raises:
            ValueError: these samples cannot be drawn.
        """
        return NOTHING

    def collect(
        self, clients: Sequence[Ints], rng: np.random.Generator
    ) -> tuple[Ints, Sequence[Ints]]:
        """Collect samples from clients.

        Args:
            clients: the samples that each client holds.
            rng: the only source of randomness.

        Returns:
            The samples that the server gets, and the samples that each client holds
            then.

        Raises:
            ValueError: the clients do not hold enough samples.
        """
        return NOTHING, clients

    def outside(self, dataset: Dataset) -> Samples | None:
        """Make samples that are not in the dataset, in the form of its training samples.

        Raises:
            ValueError: no such samples can be made for this dataset.
        """
        return None


class DrawnServer(ServerData):
    """The base of rules that draw n0 training samples, which no client then holds."""

    abstract: ClassVar[bool] = True
    n0: int = Field(gt=0, description="Number of samples that the server holds.")

    @abstractmethod
    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw n0 positions in `labels` without replacement (see `ServerData.draw`)."""

    def check(self, available: int) -> None:
        """Check that clients keep some of the `available` training samples.

        Raises:
            ValueError: n0 is not below the number of training samples.
        """
        if self.n0 >= available:
            raise ValueError(
                f"server data of n0 = {self.n0} samples leaves no client data: the training set "
                f"has {available}; choose n0 below that"
            )


class IidServer(DrawnServer):
    """The server holds n0 training samples, drawn uniformly without replacement.

    Source: SAFARI's "auxiliary dataset T i.i.d. from P" (docs/papers.md#safari).
    """

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw n0 positions uniformly (see `ServerData.draw`)."""
        self.check(len(labels))
        return np.sort(rng.choice(len(labels), self.n0, replace=False))


class StratifiedServer(DrawnServer):
    """The server holds n0 training samples, equally many of each class.

    If n0 is no multiple of the number of classes, random classes get one sample more.
    """

    needs_classes: ClassVar[bool] = True

    def draw(self, labels: Ints, num_classes: int, rng: np.random.Generator) -> Ints:
        """Draw n0 // C samples of each of C classes, and one more of n0 % C of them.

        Raises:
            ValueError: a class has too few samples.
        """
        self.check(len(labels))
        parts = []
        for c, want in enumerate(even_counts(self.n0, num_classes, rng).tolist()):
            pool = np.flatnonzero(labels == c)
            if want > len(pool):
                raise ValueError(
                    f"stratified server data needs {want} samples of class {c}, but there are "
                    f"{len(pool)}; choose a smaller n0 or IidServer"
                )
            parts.append(rng.choice(pool, want, replace=False))
        return np.sort(np.concatenate(parts))


class FromClients(ServerData):
    """The server gets `per_client` random samples from each of c random clients.

    The clients are drawn once, before training. The server's data are as skewed as
    those of the clients that give them.

    Source: FSL, scenario 2a (docs/papers.md#fsl). In its CIFAR-10 setting a client
    holds 50 samples and gives 50, so by default the server gets copies.
    """

    c: int = Field(gt=0, description="Number of clients that give samples.")
    per_client: int = Field(
        gt=0, description="Number of samples that each of them gives."
    )
    copies: bool = Field(
        default=True, description="Whether clients keep the samples that they give."
    )

    def collect(
        self, clients: Sequence[Ints], rng: np.random.Generator
    ) -> tuple[Ints, Sequence[Ints]]:
        """Collect `per_client` samples without replacement from each of c clients.

        If two of them hold the same sample (`Overlapping`), the server may get it twice.

        Raises:
            ValueError: there are fewer than c clients, or one holds too few samples; or
                clients do not keep copies, and two of them hold the same sample.
        """
        if self.c > len(clients):
            raise ValueError(
                f"server data from c = {self.c} clients, but there are {len(clients)}; lower c"
            )
        together = NOTHING if self.copies else np.concatenate(list(clients))
        if len(np.unique(together)) < len(together):
            raise ValueError(
                "copies=False takes the samples that clients give from them, but two clients "
                "hold the same sample; take copies=True, or another partition"
            )
        givers = np.sort(rng.choice(len(clients), self.c, replace=False))
        given = []
        remaining: dict[int, Ints] = {}
        for i in givers.tolist():
            samples = clients[i]
            held = len(samples)
            if self.per_client > held or (self.per_client == held and not self.copies):
                rest = "" if self.copies else " and must keep one (copies=False)"
                raise ValueError(
                    f"client {i} cannot give per_client = {self.per_client} samples: it holds "
                    f"{held}{rest}; lower per_client"
                )
            given.append(np.sort(rng.choice(samples, self.per_client, replace=False)))
            remaining[i] = np.setdiff1d(samples, given[-1], assume_unique=True)

        if self.copies:
            return np.concatenate(given), clients
        return np.concatenate(given), [
            remaining.get(i, own) for i, own in enumerate(clients)
        ]
