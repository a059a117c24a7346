"""Label skew from the Dirichlet distribution, with equal or unequal client sizes."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.client_indices import Ints, StoredIndices, group_by_owner
from raysafl.data.partitions import Partition, SamplesToSpread, pools_of

# Maximum number of draws until every client holds `min_samples`.
TRIES = 1000


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
        ge=1e-3,
        le=1e6,
        description="Concentration, 0.001 to 1,000,000; the smaller, the more skewed.",
    )
    balanced: bool = Field(
        default=True, description="Whether all clients hold equally many."
    )
    min_samples: int = Field(
        default=1, gt=0, description="Least number of samples of a client."
    )

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> StoredIndices:
        """Draw the proportions and deal out the samples, as the class describes."""
        labels, num_classes, _ = samples
        check_enough(labels, clients, self.min_samples)
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


def check_enough(labels: Ints, clients: int, min_samples: int) -> None:
    """Raise ValueError if there are fewer samples than all clients must hold together."""
    if clients * min_samples > len(labels):
        raise ValueError(
            f"{clients} clients with min_samples = {min_samples} each need "
            f"{clients * min_samples} training samples, but there are {len(labels)}"
        )
