"""Label skew from the Dirichlet distribution: with equal client sizes, and without."""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from raysafl.core.client_indices import Ints, Packed, deal
from raysafl.data.partitions import Partition

TRIES = 1000  # draws until every client holds min_samples


class Dirichlet(Partition):
    """Label proportions from Dirichlet(alpha): equal client sizes (FAST) or not (Hsu et al. 2019).

    balanced (FAST, which uses FedLab; the algorithm is FedDyn's, Acar et al. 2021): each client
    i draws class proportions pi_i ~ Dirichlet(alpha, ..., alpha). Every client holds
    floor(n / M) samples; a random client that is not full yet draws a class from pi_i and takes
    a random unused sample of it, until all are full. A used-up class is drawn no more: pi_i is
    renormalised over the others, which is what FedLab's "draw again" amounts to (and if pi_i is
    zero there, classes are drawn in proportion to what is left of them).

    Unbalanced (Hsu et al. 2019, as FedLab's `hetero_dir_partition`): for each class,
    proportions over clients p ~ Dirichlet(alpha, ..., alpha), zero for clients that already
    hold n / M samples or more, renormalised; the class is cut in these proportions. The whole
    is drawn again until each client holds `min_samples`. All samples are used.
    """

    alpha: float = Field(gt=0)
    balanced: bool = True
    min_samples: int = Field(default=1, gt=0)

    @model_validator(mode="after")
    def _drawable(self) -> "Dirichlet":
        if self.alpha < 1e-3 or self.alpha > 1e6:
            raise ValueError(f"alpha = {self.alpha} cannot be drawn; use 0.001 to 1000000")
        return self

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> Packed:
        """Balanced: up to M - 1 random samples stay unused, so that all clients are alike."""
        if clients * self.min_samples > len(labels):
            raise ValueError(
                f"{clients} clients with min_samples = {self.min_samples} each need "
                f"{clients * self.min_samples} training samples, but there are {len(labels)}"
            )
        pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
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

    def _equal(self, pools: list[Ints], clients: int, rng: np.random.Generator) -> Packed:
        left = np.array([len(pool) for pool in pools])
        size = left.sum() // clients
        prior = rng.dirichlet(np.full(len(pools), self.alpha), clients) * (left > 0)
        turns = rng.permutation(np.repeat(np.arange(clients), size))
        draws = rng.random(len(turns))
        chances: NDArray[np.float64] = np.cumsum(prior, axis=1)
        samples = np.empty(len(turns), np.int64)
        for at, (client, u) in enumerate(zip(turns.tolist(), draws.tolist(), strict=True)):
            row = chances[client]
            if row[-1] < 1e-300:  # nothing left for it, or too little to be told from nothing
                row = np.cumsum(left)
            c = int(np.searchsorted(row, u * row[-1], side="right"))
            samples[at] = pools[c][left[c] - 1]
            left[c] -= 1
            if left[c] == 0:
                prior[:, c] = 0
                chances = np.cumsum(prior, axis=1)
        return deal(turns, samples, clients)

    def _cut(self, pools: list[Ints], clients: int, rng: np.random.Generator) -> Packed:
        fair = sum(map(len, pools)) / clients
        owner = []
        sizes = np.zeros(clients, np.int64)
        for pool in pools:
            share = rng.dirichlet(np.full(clients, self.alpha)) * (sizes < fair)
            if share.sum() == 0:  # all the mass is on clients that are full
                share = (sizes < fair).astype(float) if (sizes < fair).any() else np.ones(clients)
            ends = (np.cumsum(share / share.sum()) * len(pool)).astype(int)[:-1]
            pieces = np.diff(np.concatenate([[0], ends, [len(pool)]]))
            owner.append(np.repeat(np.arange(clients), pieces))
            sizes += pieces
        return deal(np.concatenate(owner), np.concatenate(pools), clients)
