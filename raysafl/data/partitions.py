"""How the training set is spread over clients: a function of the seed alone."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.client_indices import Ints, Made, Parts, deal
from raysafl.core.component import Component
from raysafl.core.randomness import Key


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
    ) -> Sequence[Ints]:
        """Positions in `labels` for each client. Raises ValueError if impossible.

        A list of arrays will do. `users` says who made each sample, if the dataset knows.
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
    ) -> Parts:
        """Every sample is used once."""
        if clients > len(labels):
            raise ValueError(f"{clients} clients cannot share {len(labels)} training samples")
        each, more = divmod(len(labels), clients)
        owner = np.repeat(np.arange(clients), each + (np.arange(clients) < more))
        return deal(owner, rng.permutation(len(labels)), clients)


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
    ) -> Parts:
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
        owner = [np.repeat(np.flatnonzero(column), share) for column in held.T]
        dealt = [pool[: len(own)] for pool, own in zip(pools, owner, strict=True)]
        return deal(np.concatenate(owner), np.concatenate(dealt), clients)

    def _choose(
        self, num_classes: int, clients: int, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """[clients, classes]: who holds what. The least held classes go first, ties at random.

        After `period` clients all classes are held equally often and it starts over, so that
        the first clients of all periods choose at once, then the second, and so on.
        """
        period = num_classes // math.gcd(num_classes, self.p)
        ties = rng.random((clients, num_classes))
        held = np.zeros((clients, num_classes), bool)
        count = np.zeros((-(-clients // period), num_classes), np.int64)
        for turn in range(min(period, clients)):
            mine = ties[turn::period]
            order = np.lexsort((mine, count[: len(mine)]))[:, : self.p]
            np.put_along_axis(held[turn::period], order, values=True, axis=1)
            count[: len(mine)] += held[turn::period]
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


class ByUser(Partition):
    """One client per user of the dataset (FAST's Shakespeare: one client per speaker).

    With fewer clients than users, the users with most samples are taken. Clients are in the
    order of the users' numbers.
    """

    kind: ClassVar[str] = "Natural"

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> Parts:
        """All samples of each user taken."""
        if users is None:
            raise ValueError(
                "the dataset does not say who made its samples; ByUser is for Shakespeare, "
                "Synthetic and datasets of your own with Samples.users"
            )
        known, counts = np.unique(users[users >= 0], return_counts=True)
        if clients > len(known):
            raise ValueError(
                f"{clients} clients, but the dataset has {len(known)} users with training "
                f"samples; set clients={len(known)} or fewer"
            )
        largest = np.argsort(-counts, kind="stable")[:clients]
        taken = np.sort(known[largest])
        samples = np.flatnonzero(np.isin(users, taken))
        return deal(np.searchsorted(taken, users[samples]), samples, clients)


class Overlapping(Partition):
    """Each client draws its own samples from the training set, so two may hold the same ones.

    `samples` of them, uniformly and without replacement, as a pure function of (seed, client)
    that is computed when the client trains: any number of clients, also many more than there
    are samples, and no memory for those that do not come. For studies of scale: the clients are
    IID, and two share samples^2 / (size of the training set) samples on average.
    """

    samples: int = Field(gt=0)

    def spread(
        self,
        labels: Ints,
        num_classes: int,
        clients: int,
        rng: np.random.Generator,
        users: Ints | None = None,
    ) -> Parts:
        """Nothing is drawn yet."""
        available = len(labels)
        if self.samples > available:
            raise ValueError(
                f"samples = {self.samples} for each client, but the clients' training set has "
                f"{available}; choose samples up to that"
            )
        key = Key(int(rng.integers(2**63)))

        def draw(client: int) -> Ints:
            drawn = key("overlapping", client).choice(available, self.samples, replace=False)
            return np.sort(drawn)

        return Made(clients, self.samples, draw)
