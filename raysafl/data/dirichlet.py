"""Label skew from the Dirichlet distribution, with equal or unequal client sizes."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raysafl.core.client_indices import Ints, StoredIndices, group_by_owner
from raysafl.data.partitions import Partition, SamplesToSpread, pools_of

# Maximum number of draws until every client holds `min_samples`. FedLab has no maximum.
TRIES = 1000
FEDLAB_TRIES = 20_000


class Dirichlet(Partition):
    """Class proportions are drawn from Dirichlet(alpha); a small alpha means strong skew.

    Balanced (the default): every client holds floor(S / N) of the S samples. Client i
    draws class proportions pi_i ~ Dirichlet(alpha, ..., alpha). Then, until all clients
    are full, a random client that is not full draws a class from pi_i and takes a
    random unused sample of it. A class that is used up is not drawn again: pi_i is
    renormalised over the other classes, and if it is zero there, classes are drawn in
    proportion to their unused samples. Up to N - 1 random samples stay unused. Source:
    FAST, which uses FedLab (docs/papers.md#fast); the procedure is that of FedDyn
    (docs/papers.md#feddyn).

    Unbalanced: for each class, proportions over clients are drawn from Dirichlet(alpha,
    ..., alpha), set to zero for clients that already hold S / N samples or more, and
    renormalised; the class is cut in these proportions. All is drawn again until each
    client holds at least `min_samples`. All samples are used. Source: Yurochkin et al.
    2019 (docs/papers.md#hetero-dir), as FedLab's `hetero_dir_partition` has it
    (docs/papers.md#fedlab).
    """

    needs_classes: ClassVar[bool] = True
    alpha: float = Field(
        gt=0,
        description="Concentration, 0.001 to 1,000,000; the smaller, the more skewed.",
    )
    balanced: bool = Field(
        default=True, description="Whether all clients hold equally many."
    )
    min_samples: int = Field(
        default=1, gt=0, description="Least number of samples of a client."
    )

    @model_validator(mode="after")
    def _drawable(self) -> "Dirichlet":
        if self.alpha < 1e-3 or self.alpha > 1e6:
            raise ValueError(
                f"alpha = {self.alpha} cannot be drawn; use 0.001 to 1000000"
            )
        return self

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> StoredIndices:
        """Draw the proportions and deal out the samples, as the class describes."""
        labels, num_classes, _ = samples
        _check_enough(labels, clients, self.min_samples)
        pools = pools_of(labels, num_classes, rng)
        if self.balanced:
            return self._equal(pools, clients, rng)
        for _ in range(TRIES):
            parts = self._cut(pools, clients, rng)
            if parts.sizes.min() >= self.min_samples:
                return parts
        raise ValueError(
            f"alpha = {self.alpha} left some of {clients} clients with fewer than min_samples = "
            f"{self.min_samples} samples in {TRIES} draws; raise alpha, lower min_samples or "
            "clients, or use balanced=True"
        )

    def _equal(
        self, pools: list[Ints], clients: int, rng: np.random.Generator
    ) -> StoredIndices:
        """Deal out samples one by one to clients of equal size (balanced)."""
        left = np.array([len(pool) for pool in pools])
        size = left.sum() // clients
        prior = rng.dirichlet(np.full(len(pools), self.alpha), clients) * (left > 0)
        # Each client takes its samples at the times of a Poisson process, so the next one
        # to take a sample is any client that is not full, each as likely as the others.
        times = np.cumsum(rng.exponential(size=(clients, size)), axis=1)
        turns = np.argsort(times, axis=None) // size
        draws = rng.random(len(turns))
        chances: NDArray[np.float64] = np.cumsum(prior, axis=1)
        samples = np.empty(len(turns), np.int64)
        for at, (client, u) in enumerate(
            zip(turns.tolist(), draws.tolist(), strict=True)
        ):
            row = chances[client]
            # The client's classes are used up, or their mass is too small to divide by.
            if row[-1] < 1e-300:
                row = np.cumsum(left)
            c = int(np.searchsorted(row, u * row[-1], side="right"))
            samples[at] = pools[c][left[c] - 1]
            left[c] -= 1
            if left[c] == 0:
                prior[:, c] = 0
                chances = np.cumsum(prior, axis=1)
        return group_by_owner(turns, samples, clients)

    def _cut(
        self, pools: list[Ints], clients: int, rng: np.random.Generator
    ) -> StoredIndices:
        """Cut each class among the clients in drawn proportions (unbalanced)."""
        fair = sum(map(len, pools)) / clients
        owner = []
        sizes = np.zeros(clients, np.int64)
        for pool in pools:
            share = rng.dirichlet(np.full(clients, self.alpha)) * (sizes < fair)
            # All the mass may be on clients that are full already.
            if share.sum() == 0:
                share = (
                    (sizes < fair).astype(float)
                    if (sizes < fair).any()
                    else np.ones(clients)
                )
            ends = (np.cumsum(share / share.sum()) * len(pool)).astype(int)[:-1]
            pieces = np.diff(np.concatenate([[0], ends, [len(pool)]]))
            owner.append(np.repeat(np.arange(clients), pieces))
            sizes += pieces
        return group_by_owner(np.concatenate(owner), np.concatenate(pools), clients)


class FedLabDirichlet(Partition):
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
        _check_enough(labels, clients, self.min_samples)
        most = len(labels) / clients if self.capped else np.inf
        classes = [np.flatnonzero(labels == c) for c in range(num_classes)]
        for _ in range(FEDLAB_TRIES):
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
            f"min_samples = {self.min_samples} samples in {FEDLAB_TRIES} draws; raise "
            "alpha, or lower min_samples or clients"
        )


def _check_enough(labels: Ints, clients: int, min_samples: int) -> None:
    """Raise ValueError if there are fewer samples than all clients must hold together."""
    if clients * min_samples > len(labels):
        raise ValueError(
            f"{clients} clients with min_samples = {min_samples} each need "
            f"{clients * min_samples} training samples, but there are {len(labels)}"
        )
