"""Partitions: how the training samples are spread over the clients.

A partition is a pure function of the labels, the number of clients and the seed.
Rules that go by class refuse data without classes (`Partition.needs_classes`).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raysafl.core.client_indices import (
    ClientIndices,
    ComputedIndices,
    Ints,
    group_by_owner,
)
from raysafl.core.component import Component
from raysafl.core.problem import Samples
from raysafl.core.randomness import Key
from raysafl.core.text import nearest


def even_counts(total: int, parts: int, rng: np.random.Generator) -> Ints:
    """Divide a number evenly; if it is no multiple, random parts get one more."""
    return total // parts + (rng.permutation(parts) < total % parts)


def pools_of(labels: Ints, num_classes: int, rng: np.random.Generator) -> list[Ints]:
    """Return the positions of each class's samples, in random order."""
    return [rng.permutation(np.flatnonzero(labels == c)) for c in range(num_classes)]


class SamplesToSpread(NamedTuple):
    """What a partition knows of the samples that it spreads over clients.

    Args:
        labels: the class of each sample, [S]; if the partition does not set
            `needs_classes`, any targets, [S, ...].
        num_classes: the number of classes of the dataset; 0 if it has none.
        users: whose each sample is, [S], if the dataset knows it; -1: nobody's.
    """

    labels: Ints
    num_classes: int
    users: Ints | None = None


class Partition(Component):
    """A rule that spreads samples over clients. Subclass it and define `spread`.

    Attributes:
        needs_classes: Whether each sample must have one class. A federation then
            refuses data with other targets, such as numbers.

    Example:
        >>> import numpy as np
        >>> import raysafl as fl
        >>> labels = np.array([0, 0, 1, 1, 2, 2])
        >>> samples = SamplesToSpread(labels, num_classes=3)
        >>> rule = fl.ClassesPerClient(p=1)
        >>> parts = rule.spread(samples, 3, np.random.default_rng(0))
        >>> sorted(labels[part].tolist() for part in parts)
        [[0, 0], [1, 1], [2, 2]]
    """

    abstract: ClassVar[bool] = True
    needs_classes: ClassVar[bool] = False

    def users_of(self, samples: Samples) -> Ints | None:
        """Return whose each sample is, as `spread` is given it; None if nobody knows.

        Args:
            samples: the training samples.

        Raises:
            ValueError: the samples lack what the partition goes by.
        """
        return samples.users

    @abstractmethod
    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> Sequence[Ints]:
        """Return for each client the positions of its samples among those given.

        Args:
            samples: the samples that may be given to a client.
            clients: the number of clients.
            rng: the only source of randomness.

        Returns:
            One integer array per client; a list of arrays is allowed.

        Raises:
            ValueError: these samples cannot be spread in this way.
        """

    def client_names(self, samples: Samples, first: Ints) -> tuple[str, ...]:
        """Return the names of the clients, or nothing if they have none.

        Args:
            samples: the training samples.
            first: the position of a sample of each client's own.
        """
        return ()


class Iid(Partition):
    """Samples are shuffled and dealt out evenly; client sizes differ by at most one."""

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> ClientIndices:
        """Give every sample to exactly one client."""
        count = len(samples.labels)
        if clients > count:
            raise ValueError(f"{clients} clients cannot share {count} training samples")
        each, more = divmod(count, clients)
        owner = np.repeat(np.arange(clients), each + (np.arange(clients) < more))
        return group_by_owner(owner, rng.permutation(count), clients)


class ClassesPerClient(Partition):
    """Each client holds p classes, and equally many samples of each of them.

    With h(c) clients that hold class c, which has n(c) samples, each holder gets u =
    min_c floor(n(c) / h(c)) samples of each of its classes. So every client holds p * u
    samples, and some samples of the larger classes stay unused.

    Source: SAFARI, appendix B.1 (docs/papers.md#safari), and FSL's C
    (docs/papers.md#fsl). Each client "randomly selects p classes" and "evenly samples"
    within them without replacement. The paper leaves open whether two clients may
    select the same classes. Here classes are covered as evenly as possible: h(c)
    differs by at most one, so that 10 clients with p = 1 hold ten different classes.
    `DealtClasses`, `IndependentClasses` and `Shards` are the other readings.
    """

    needs_classes: ClassVar[bool] = True
    p: int = Field(gt=0, description="Number of classes that each client holds.")

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> ClientIndices:
        """Choose the classes of each client, then deal out each class among its holders."""
        labels, num_classes, _ = samples
        if self.p > num_classes:
            raise ValueError(
                f"p = {self.p} classes per client, but the data has {num_classes}; "
                f"p must be from 1 to {num_classes}"
            )

        held = self._choose(num_classes, clients, rng)
        pools = pools_of(labels, num_classes, rng)
        holders = held.sum(axis=0)
        share = min(
            len(pools[c]) // holders[c] for c in range(num_classes) if holders[c]
        )
        if share == 0:
            raise ValueError(
                f"{clients} clients with p = {self.p} classes each are too many for "
                f"{len(labels)} training samples: some class has fewer samples than holders"
            )

        owner = [np.repeat(np.flatnonzero(column), share) for column in held.T]
        dealt = [pool[: len(own)] for pool, own in zip(pools, owner, strict=True)]
        return group_by_owner(np.concatenate(owner), np.concatenate(dealt), clients)

    def _choose(
        self, num_classes: int, clients: int, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Return which client holds which class, as booleans [clients, classes].

        Clients choose one after the other, each the p classes that are held least so
        far; ties are broken at random. After `period` clients all classes are held
        equally often and the choice starts over. So the first clients of all periods
        can choose in one vectorised step, then the second clients of all periods, and
        so on.
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
    """Each client draws its p classes independently; otherwise as `ClassesPerClient`.

    This is the literal reading of SAFARI's appendix B.1 ("each client randomly selects
    p classes", docs/papers.md#safari). Some classes may be held by no client: with 10
    clients and p = 1, about 6.5 of ten classes are held.
    """

    def _choose(
        self, num_classes: int, clients: int, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Draw p classes for each client, as booleans [clients, classes]."""
        order = rng.random((clients, num_classes)).argsort(axis=1)
        held = np.zeros((clients, num_classes), bool)
        np.put_along_axis(held, order[:, : self.p], True, axis=1)
        return held


class DealtClasses(ClassesPerClient):
    """Each class is cut into equally many parts, and clients in turn draw p classes at random.

    With N clients and K classes, a class has floor(N p / K) parts or one more. One client
    after the other draws p different classes among those that have parts left, and
    takes a part of each. So all classes are held equally often, as in
    `ClassesPerClient`, but a few clients can be the only holders of a class: with 10
    clients, 10 classes and p = 2, the last four clients hold both parts of two classes
    on average. A class that has as many parts left as there are clients left must be
    drawn, as otherwise the last clients would not find p classes.

    Source: the public code of Li et al. 2020 (docs/papers.md#li2020), whose partition
    SAFARI (section 5, docs/papers.md#safari) says that it follows.
    """

    def _choose(
        self, num_classes: int, clients: int, rng: np.random.Generator
    ) -> NDArray[np.bool_]:
        """Draw p classes for each client, as booleans [clients, classes]."""
        count = clients * self.p
        left = even_counts(count, num_classes, rng)
        held = np.zeros((clients, num_classes), bool)
        for client in range(clients):
            # Classes that must be drawn come first, classes without parts last.
            rank = rng.random(num_classes)
            rank[left == clients - client] -= 1
            rank[left == 0] += 2
            mine = rank.argsort()[: self.p]
            held[client, mine] = True
            left[mine] -= 1
        return held


class Shards(Partition):
    """Samples are cut into N * p shards of one class each, and each client gets p shards.

    All shards have the same size, and they are dealt out at random. With N p = 20 and
    ten classes, each class has two shards; one client may get both, and if it never
    participates, the class is lost. With p = 1 and as many clients as classes this
    equals `ClassesPerClient`.

    Source: McMahan et al. 2017 (docs/papers.md#fedavg), which SAFARI (section 5) says
    that it follows. There, shards are cut from the sorted labels and may straddle two
    classes; here they do not.
    """

    needs_classes: ClassVar[bool] = True
    p: int = Field(gt=0, description="Number of shards that each client holds.")

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> list[Ints]:
        """Cut and deal the shards; some samples of larger classes stay unused."""
        labels, num_classes, _ = samples
        count = clients * self.p
        cut_C = even_counts(count, num_classes, rng)
        pools = pools_of(labels, num_classes, rng)
        size = min(
            len(pool) // cut for pool, cut in zip(pools, cut_C, strict=True) if cut
        )
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
        # Each row of `hands` holds the shards of one client.
        hands = rng.permutation(count).reshape(clients, self.p)
        return [np.sort(np.concatenate([shards[k] for k in hand])) for hand in hands]


class ByUser(Partition):
    """One client per user of the dataset, such as a speaker of Shakespeare's plays.

    With fewer clients than users, the users with the most samples become the clients.
    Clients are in the order of the users' numbers. `ByColumn` is the same for a column
    of data of your own. Source: FAST's Shakespeare (docs/papers.md#fast).
    """

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> ClientIndices:
        """Give each chosen user's samples to one client."""
        if samples.users is None:
            raise ValueError(
                "the dataset does not say who made its samples; ByUser is for Shakespeare, "
                "Synthetic and datasets of your own with Samples.users, and ByColumn for "
                "data of your own with columns"
            )
        return _one_client_per_user(samples.users, clients, "users")

    def client_names(self, samples: Samples, first: Ints) -> tuple[str, ...]:
        """Return the number of each client's user, as `user 7`."""
        assert samples.users is not None
        return tuple(f"user {number}" for number in samples.users[first].tolist())


class ByColumn(Partition):
    """One client per value of a column, such as one per hospital.

    The column may hold text, whole numbers, dates or categories: it is what `client=`
    of `from_pandas`, `from_csv` and `from_parquet` names, or `clients=` of
    `from_arrays` and `from_torch`. Clients are in the ascending order of the values,
    which are their names. Every training sample goes to the client of its value.

    The number of clients, `Federation.clients`, must be that of the values that
    training samples have; if it is another, the error message says that number.

    Example:
        >>> import pandas as pd
        >>> import raysafl as fl
        >>> visits = pd.DataFrame({"age": [30, 41, 52, 63, 74, 35]})
        >>> visits["ill"] = [0, 1, 0, 1, 1, 0]
        >>> visits["year"] = [2020, 2021, 2020, 2021, 2021, 2020]
        >>> source = fl.from_pandas(visits, label="ill", client="year", test_share=0.3)
        >>> data = fl.Federation(
        ...     dataset=source, clients=2, partition=fl.ByColumn(column="year")
        ... )
        >>> dataset = data.load()
        >>> data.client_names(dataset, data.split(dataset, seed=0))
        ('2020', '2021')
    """

    column: str = Field(description="The column whose values are the clients.")
    largest: bool = Field(
        default=False,
        description="Whether there may be fewer clients than values; the values with "
        "the most training samples become clients then, and no client holds the others.",
    )

    def users_of(self, samples: Samples) -> Ints:
        """Return the number of each sample's value.

        Raises:
            ValueError: there is no such column; the nearest is named.
        """
        if self.column not in samples.columns:
            raise ValueError(
                f"the dataset has no client column '{self.column}': "
                f"{nearest(self.column, samples.columns)}. Make it with client="
                f"'{self.column}' (of arrays, clients={{'{self.column}': ...}}), or take "
                "another partition"
            )
        return samples.columns[self.column].codes

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> ClientIndices:
        """Give the samples of each value to one client."""
        users = samples.users
        assert users is not None
        values = len(np.unique(users[users >= 0]))
        if clients < values and not self.largest:
            raise ValueError(
                f"clients={clients}, but the column '{self.column}' has {values} values "
                f"among the training samples; set clients={values}, or "
                f"ByColumn(column='{self.column}', largest=True) for the {clients} with "
                "the most samples"
            )
        what = f"values of the column '{self.column}'"
        return _one_client_per_user(users, clients, what)

    def client_names(self, samples: Samples, first: Ints) -> tuple[str, ...]:
        """Return the value of each client."""
        column = samples.columns[self.column]
        return tuple(column.values[code] for code in column.codes[first].tolist())


def _one_client_per_user(users: Ints, clients: int, what: str) -> ClientIndices:
    """Make a client of each user, or of those with the most samples.

    Args:
        users: the number of each sample's user, [S]; -1: it has none.
        clients: the number of clients.
        what: what a message calls the users.

    Raises:
        ValueError: there are fewer users than clients.
    """
    known, counts = np.unique(users[users >= 0], return_counts=True)
    if clients > len(known):
        raise ValueError(
            f"{clients} clients, but the dataset has {len(known)} {what} with training "
            f"samples; set clients={len(known)} in Federation(...)"
        )
    # A stable sort takes the user with the lower number if two have equally many.
    largest = np.argsort(-counts, kind="stable")[:clients]
    taken = np.sort(known[largest])
    samples = np.flatnonzero(np.isin(users, taken))
    return group_by_owner(np.searchsorted(taken, users[samples]), samples, clients)


class Overlapping(Partition):
    """Each client draws its samples from the whole training set, so two clients may overlap.

    The draw is uniform without replacement, and a pure function of (seed, client) that
    is computed when the client trains. So there may be many more clients than samples,
    and clients that do not participate take no memory. This serves studies of scale: the
    clients are IID, and two of them share samples^2 / S samples on average, S being the
    training set's size.
    """

    samples: int = Field(gt=0, description="Number of samples that each client holds.")

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> ClientIndices:
        """Return a description of the clients' samples; they are drawn on access."""
        available = len(samples.labels)
        if self.samples > available:
            raise ValueError(
                f"samples = {self.samples} for each client, but the clients' training set has "
                f"{available}; choose samples up to that"
            )
        # Each client gets a random stream of its own, so it can be drawn alone and later.
        key = Key(int(rng.integers(2**63)))

        def draw(client: int) -> Ints:
            drawn = key("overlapping", client).choice(
                available, self.samples, replace=False
            )
            return np.sort(drawn)

        return ComputedIndices(clients, self.samples, draw)
