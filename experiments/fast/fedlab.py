"""FedLab's partition by labels, with which FAST dealt its data (docs/papers.md#fedlab)."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import raysafl as fl
from raysafl.data.dirichlet import check_enough
from raysafl.data.partitions import SamplesToSpread

# Maximum number of draws until every client holds `min_samples`. FedLab has no maximum.
TRIES = 20_000
Ints = NDArray[np.int64]


class FedLabDirichlet(fl.data.Partition):
    """FedLab's partition by labels, to the last index; and the same with uncapped sizes.

    For each class, its samples are shuffled, and shares over the clients are drawn from
    Dirichlet(alpha, ..., alpha). The shares of clients that hold S / N samples or more
    are set to zero, unless `capped` is false; the rest are normalised, and the class is
    cut where the cumulative shares times its size, rounded down, end. All is drawn again
    until each client holds `min_samples`; then each client's samples are shuffled, and
    keep this order. The draws come from NumPy's legacy generator in FedLab's order, so
    with `legacy_seed` a deal that FedLab made with this seed is made again.

    `Dirichlet(balanced=False)` is the same law, with a client's samples in rising order.

    Source: FedLab 1.3, `noniid-labeldir` (docs/papers.md#fedlab), with which FAST
    (docs/papers.md#fast) dealt Fashion-MNIST, with the seed 365. For CIFAR-10 its code
    cuts each class without a cap.
    """

    needs_classes: ClassVar[bool] = True
    alpha: float = Field(
        gt=0, description="Concentration; the smaller, the more skewed."
    )
    capped: bool = Field(
        default=True,
        description="Whether a client that holds S / N samples gets none of the classes "
        "that follow.",
    )
    min_samples: int = Field(
        default=10, gt=0, description="Least number of samples of a client."
    )
    legacy_seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**32,
        description="Seed of numpy.random.seed; None: it is drawn from the seed of the "
        "partition.",
    )

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> list[Ints]:
        """Deal with the generator that `legacy_seed` names."""
        seed = self.legacy_seed
        if seed is None:
            seed = int(rng.integers(2**32))
        legacy = np.random.RandomState(seed)
        return self.deal(samples.labels, samples.num_classes, clients, legacy)

    def deal(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        legacy: np.random.RandomState,
    ) -> list[Ints]:
        """Deal with a legacy generator, which can go on to draw what comes next.

        Args:
            labels: the class of each sample.
            num_classes: the number of classes.
            clients: the number of clients.
            legacy: the generator.

        Raises:
            ValueError: there are too few samples, no draw gave each client `min_samples`,
                or alpha is too small.
        """
        check_enough(labels, clients, self.min_samples)
        most = len(labels) / clients if self.capped else np.inf
        classes = [np.flatnonzero(labels == c) for c in range(num_classes)]
        for _ in range(TRIES):
            parts: list[list[Ints]] = [[] for _ in range(clients)]
            sizes = np.zeros(clients, np.int64)
            for samples in classes:
                own = samples.copy()
                legacy.shuffle(own)
                share = legacy.dirichlet(np.full(clients, self.alpha)) * (sizes < most)
                if not np.isfinite(share).all():
                    raise ValueError(
                        f"alpha = {self.alpha} is too small for NumPy's legacy generator; "
                        "raise it, or take Dirichlet(balanced=False)"
                    )
                # If all mass is on clients that are full, the last client gets the class.
                share /= share.sum() or 1.0
                ends = (np.cumsum(share) * len(own)).astype(int)
                pieces = np.split(own, ends[:-1])
                for part, piece in zip(parts, pieces, strict=True):
                    part.append(piece)
                sizes += [len(piece) for piece in pieces]
            if sizes.min() >= self.min_samples:
                dealt = [np.concatenate(part) for part in parts]
                for own in dealt:
                    legacy.shuffle(own)
                return dealt
        raise ValueError(
            f"alpha = {self.alpha} left some of {clients} clients with fewer than "
            f"min_samples = {self.min_samples} samples in {TRIES} draws; raise "
            "alpha, or lower min_samples or clients"
        )
