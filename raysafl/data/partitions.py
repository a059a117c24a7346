"""How the training set is spread over clients: disjoint, and a function of the seed alone."""

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.component import Component

Ints = NDArray[np.int64]


class Partition(Component):
    """A way to spread samples. Define `spread` in your own file to bring your own."""

    abstract: ClassVar[bool] = True

    @abstractmethod
    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> list[Ints]:
        """Positions in `labels` for each client, disjoint. Raises ValueError if impossible.

        `users` says who made each sample, if the dataset knows.
        """


class Iid(Partition):
    """Shuffled and dealt out evenly; sizes differ by one at most."""

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> list[Ints]:
        """Every sample is used once."""
        if clients > len(labels):
            raise ValueError(f"{clients} clients cannot share {len(labels)} training samples")
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


class ClassesPerClient(Partition):
    """Each client holds p classes, and equally many samples of each (SAFARI's p, FSL's C).

    With h(c) clients holding class c of size n(c), every holder gets u = min_c floor(n(c)/h(c))
    samples of each of its classes, so all clients hold p*u samples. The paper (appendix B.1)
    says that each client "randomly selects p classes" and "evenly samples" within them without
    replacement. Open there, chosen here: classes are covered as evenly as possible (h differs
    by one at most, so M = 10, p = 1 gives each client another class).
    """

    p: int = Field(gt=0)

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> list[Ints]:
        """Some samples of the larger classes stay unused, so that all clients are alike."""
        if self.p > num_classes:
            raise ValueError(
                f"p = {self.p} classes per client, but the data has {num_classes}; "
                f"p must be from 1 to {num_classes}"
            )
        held = self._choose(num_classes, clients, rng)
        pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
        holders = held.sum(axis=0)
        share = min(len(pools[c]) // holders[c] for c in range(num_classes) if holders[c])
        if share == 0:
            raise ValueError(
                f"{clients} clients with p = {self.p} classes each are too many for "
                f"{len(labels)} training samples: some class has fewer samples than holders"
            )
        parts: list[list[Ints]] = [[] for _ in range(clients)]
        for c, pool in enumerate(pools):
            for slot, client in enumerate(np.flatnonzero(held[:, c])):
                parts[client].append(pool[slot * share : (slot + 1) * share])
        return [np.sort(np.concatenate(part)) for part in parts]

    def _choose(
        self, num_classes: int, clients: int, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """[clients, classes]: who holds what. The least held classes go first, ties at random."""
        held = np.zeros((clients, num_classes), bool)
        for client in range(clients):
            order: NDArray[Any] = np.lexsort((rng.random(num_classes), held.sum(axis=0)))
            held[client, order[: self.p]] = True
        return held


class IndependentClasses(ClassesPerClient):
    """Each client draws its p classes independently of the others; else as ClassesPerClient.

    The letter of SAFARI's appendix B.1 ("each client randomly selects p classes"). Some classes
    may be held by nobody: with M = 10, p = 1 about 6.5 of ten are held.
    """

    def _choose(
        self, num_classes: int, clients: int, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """[clients, classes]: p classes of each client, uniformly without replacement."""
        order = rng.random((clients, num_classes)).argsort(axis=1)
        held = np.zeros((clients, num_classes), bool)
        np.put_along_axis(held, order[:, : self.p], True, axis=1)
        return held


class Shards(Partition):
    """M * p shards of one class each and of one size, dealt out at random, p to a client.

    McMahan et al. (2017), which SAFARI (section 5) says it follows; there shards are cut from the
    sorted labels and may straddle two classes, here they do not. With M p = 20 and ten classes
    each has two shards: a client may get both, and what absent clients hold may be nobody else's.
    With p = 1 and as many clients as classes this is ClassesPerClient.
    """

    p: int = Field(gt=0)

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> list[Ints]:
        """Some samples of the larger classes stay unused, so that all clients are alike."""
        count = clients * self.p
        cut_C = count // num_classes + (rng.permutation(num_classes) < count % num_classes)
        pools = [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]
        size = min(len(pool) // cut for pool, cut in zip(pools, cut_C, strict=True) if cut)
        if size == 0:
            raise ValueError(
                f"{clients} clients with p = {self.p} shards each are too many for "
                f"{len(labels)} training samples: some class has fewer samples than shards"
            )
        shards = [
            pool[k * size : (k + 1) * size]
            for pool, cut in zip(pools, cut_C.tolist(), strict=True)
            for k in range(cut)
        ]
        hands = rng.permutation(count).reshape(clients, self.p)
        return [np.sort(np.concatenate([shards[k] for k in hand])) for hand in hands]


class Natural(Partition):
    """One client per user of the dataset (FAST's Shakespeare: one client per speaker).

    With fewer clients than users, the users with most samples are taken. Clients are in the
    order of the users' numbers.
    """

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> list[Ints]:
        """All samples of each user taken."""
        if users is None:
            raise ValueError(
                "the dataset does not say who made its samples; Natural is for Shakespeare, "
                "Synthetic and datasets of your own with Samples.users"
            )
        known, counts = np.unique(users[users >= 0], return_counts=True)
        if clients > len(known):
            raise ValueError(
                f"{clients} clients, but the dataset has {len(known)} users with training "
                f"samples; set clients={len(known)} or fewer"
            )
        largest = np.argsort(-counts, kind="stable")[:clients]
        return [np.flatnonzero(users == user) for user in np.sort(known[largest])]
