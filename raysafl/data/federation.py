"""A dataset that is spread over clients and a server."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.client_indices import (
    ClientIndices,
    Ints,
    StoredIndices,
    as_client_indices,
)
from raysafl.core.component import method_name, users_parts
from raysafl.core.problem import Dataset, FederatedData, Samples, Split
from raysafl.core.randomness import Key
from raysafl.data.partitions import Iid, Partition, SamplesToSpread
from raysafl.data.server_data import ServerData
from raysafl.data.sources import Digits, Source
from raysafl.data.validation import Validation, hold_out, without

NOTHING = np.empty(0, np.int64)


class Federation(FederatedData):
    """A dataset, the clients, the partition over them, and the server's own data.

    The server's n0 samples are drawn first and the partition spreads the rest, so that
    no sample is at the server and at a client (unless the server copies samples of
    clients, see `FromClients`, or clients overlap). Samples from outside the dataset are
    appended to its training samples, and no client gets them. With `own_tests`, a share of
    each client's samples is held out before the server collects any and before any are
    shared. `validation` holds samples of clients or server back, on which models are
    evaluated in each evaluated round and never trained.

    By default all replicates share one partition and differ in everything else that is
    drawn: the initial model (unless it starts at zero), the cohorts and the batches.
    With `partition_seeds=D` they take D partitions in turn, so that results also show how
    much depends on the partition.

    Example:
        >>> import raysafl as fl
        >>> data = fl.Federation(
        ...     dataset=fl.Digits(),
        ...     clients=10,
        ...     partition=fl.ClassesPerClient(p=1),
        ...     server=fl.IidServer(n0=100),
        ... )
        >>> split = data.split(data.load(), seed=0)
        >>> len(split.clients), len(split.server)
        (10, 100)
    """

    dataset: SerializeAsAny[Source] = Field(
        default_factory=Digits, description="Where the samples come from."
    )
    partition: SerializeAsAny[Partition] = Field(
        default_factory=Iid,
        description="How the training samples are spread over the clients.",
    )
    server: SerializeAsAny[ServerData] | None = Field(
        default=None, description="The server's own data D0; None: the server has none."
    )
    seed: int | None = Field(
        default=0,
        ge=0,
        lt=2**63,
        description="Seed of the first partition and its D0; None: each replicate has a "
        "partition of its own, by the replicate's seed.",
    )
    partition_seeds: int = Field(
        default=1,
        ge=1,
        description="Number D of partitions: the replicate with seed r has that with the "
        "seed `seed + r mod D`. D0 is drawn with it.",
    )
    share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Data sharing (docs/papers.md#data-sharing): the fraction of D0, "
        "drawn anew for each client, that is appended to every client's data; 1 is all "
        "of D0, as in FSL. A client is sent these samples once, in the round in which "
        "it first trains.",
    )
    validation: Validation | None = Field(
        default=None,
        description="Shares of the training samples that are held back, by which models "
        "are judged; None: there are no validation samples.",
    )

    own_tests: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of each client's samples that no training uses and that "
        'become the client\'s own test samples, for `PerClient(on="own")`.',
    )

    @model_validator(mode="after")
    def _partition_seeds_follow_the_seed(self) -> "Federation":
        if self.seed is None and self.partition_seeds > 1:
            raise ValueError(
                f"partition_seeds={self.partition_seeds} counts on from `seed`, which is None: "
                "each replicate has a partition of its own then; give a seed, for example 0, "
                "or leave out partition_seeds"
            )
        return self

    @model_validator(mode="after")
    def _something_to_share(self) -> "Federation":
        if self.share and self.server is None:
            raise ValueError(
                "share needs server data to share; give it, for example server=IidServer(n0=500)"
            )
        return self

    @property
    def has_server_data(self) -> bool:
        """Return whether the server holds samples of its own."""
        return self.server is not None

    @property
    def has_validation(self) -> bool:
        """Return whether some training samples are held back."""
        return self.validation is not None

    @property
    def source_key(self) -> str:
        """Return a key that is equal for federations whose `load` gives equal datasets.

        It is the dataset's JSON, with the server data's JSON if those samples come from
        outside the dataset.
        """
        key = self.dataset.to_json()
        outside = (
            self.server is not None
            and type(self.server).outside is not ServerData.outside
        )
        return key + self.server.to_json() if outside and self.server else key

    def load(self) -> Dataset:
        """Read the dataset, and append the server's samples if they come from outside it."""
        dataset = self.dataset.load()
        if self.server is not None:
            _refuse_without_classes(self.server, dataset)
        extra = None if self.server is None else self.server.outside(dataset)
        if extra is None:
            return dataset

        train = dataset.train
        users = None
        if train.users is not None:
            # -1: these samples have no user, so that no client can get them by
            # `ByUser`.
            users = np.concatenate([train.users, np.full(len(extra), -1)])
        joined = replace(
            train,
            x=np.concatenate([train.x, extra.x]),
            y=np.concatenate([train.y, extra.y]),
            users=users,
            columns={n: c.extended(len(extra)) for n, c in train.columns.items()},
        )
        return replace(dataset, train=joined, outside=len(extra))

    def owners(self, samples: Samples) -> Ints | None:
        """Return whose each sample is: the values of `ByColumn`, else the users."""
        return self.partition.users_of(samples)

    @property
    def splitter(self) -> str:
        """The method that spreads: a partition's of the user's own, else `split`."""
        if users_parts(self, Partition):
            return method_name(self, Partition, "spread")
        return super().splitter

    def split_seed(self, seed: int) -> int:
        """Return the seed that determines the split of the replicate with this seed.

        Replicates with equal values share one split.
        """
        return seed if self.seed is None else self.seed + seed % self.partition_seeds

    def split(self, dataset: Dataset, seed: int) -> Split:
        """Decide which training samples each client and the server hold.

        Args:
            dataset: what `load` returned.
            seed: the seed of the replicate.

        Raises:
            ValueError: the partition or the server data does not fit the dataset.
        """
        for part in (self.partition, self.server):
            if part is not None:
                _refuse_without_classes(part, dataset)
        key = Key(self.split_seed(seed))
        # Samples from outside the dataset stand at the end and are the server's alone.
        inside = len(dataset.train) - dataset.outside
        labels = dataset.train.y[:inside]
        users = self.partition.users_of(dataset.train)

        server = NOTHING
        if self.server is not None:
            drawn = self.server.draw(labels, dataset.num_classes, key("server data"))
            where = method_name(self.server, ServerData, "draw")
            server = _existing([drawn], 1, inside, where)[0]
        validation = NOTHING
        if self.validation and self.validation.server and self.server is None:
            whole = np.arange(inside)
            validation = self.validation.drawn(whole, "the training set", key)
        # Samples that the server holds, or that are held back, are not given to clients.
        taken = np.concatenate([server, validation])
        free = np.setdiff1d(np.arange(inside), taken, assume_unique=True)

        given = SamplesToSpread(
            labels[free],
            dataset.num_classes,
            None if users is None else users[free],
        )
        parts = self.partition.spread(given, self.clients, key("partition"))
        where = method_name(self.partition, Partition, "spread")
        clients = _existing(parts, self.clients, len(free), where).within(free)
        tests = None
        if self.own_tests:
            clients, tests = hold_out(clients, self.own_tests, key)

        collected = NOTHING
        if self.server is not None:
            collected, remaining = self.server.collect(clients, key("from clients"))
            where = method_name(self.server, ServerData, "collect")
            clients = _existing(remaining, self.clients, inside, where)
            collected = _existing([collected], 1, inside, where)[0]
            outside = np.arange(inside, len(dataset.train))
            server = np.concatenate([server, collected, outside])
        if self.validation is not None:
            if self.validation.server and self.server is not None:
                validation = self.validation.drawn(server, "the server's data", key)
            clients, server, validation = _hold_back(
                self.validation, clients, server, validation, key, len(collected) > 0
            )
        shared = round(self.share * len(server))
        if self.share:
            clients = _with_shared_data(clients, server, shared, key)
        return Split(clients, server, shared, tests=tests, validation=validation)

    def client_names(self, dataset: Dataset, split: Split) -> tuple[str, ...]:
        """Return the names of the clients: of `ByColumn` or `ByUser`, else nothing."""
        if type(self.partition).client_names is Partition.client_names:
            return ()
        # A client's own samples stand before those that the server shares with it.
        first = np.array([samples[0] for samples in split.clients], np.int64)
        return self.partition.client_names(dataset.train, first)


def _existing(
    parts: Iterable[Ints], number: int, count: int, where: str
) -> ClientIndices:
    """Store arrays of positions, if there are as many as asked for and all positions exist.

    Args:
        parts: The arrays: of each client, or the server's alone.
        number: How many arrays there must be.
        count: The number of samples that the positions are of.
        where: The method that returned the arrays, for messages.

    Raises:
        ValueError: There are more or fewer arrays, or a position is no sample's.
    """
    held = as_client_indices(parts)
    if len(held) != number:
        raise ValueError(
            f"{where} returns samples for {len(held)} clients, but there are {number}; "
            "return one array for each, and an empty one for a client without samples"
        )
    # Those that are computed when they are needed are raysafl's own.
    flat = held.flat if isinstance(held, StoredIndices) else NOTHING
    if len(flat) and not 0 <= flat.min() <= flat.max() < count:
        raise ValueError(
            f"{where} returns positions from {flat.min()} to {flat.max()}, but the samples "
            f"that it may give have the positions 0 to {count - 1}"
        )
    return held


def _hold_back(
    rule: Validation,
    clients: ClientIndices,
    server: Ints,
    drawn: Ints,
    key: Key,
    has_copies: bool,
) -> tuple[ClientIndices, Ints, Ints]:
    """Take the validation samples out of what the clients and the server hold.

    Args:
        rule: The shares.
        clients: The positions of each client's samples.
        server: The positions of the server's samples.
        drawn: The server's share, or that of the whole training set.
        key: The source of randomness of the split.
        has_copies: Whether the server collected samples that clients may hold too.

    Returns:
        The samples that each client and the server train on, and the validation samples.

    Raises:
        ValueError: A share is less than one sample, or takes all that somebody holds.
    """
    taken = np.unique(drawn)
    if has_copies:
        clients = without(clients, taken)
    if rule.clients:
        given = rule.drawn_from_clients(clients, key)
        clients = without(clients, given)
        taken = np.union1d(taken, given)
    kept = server[~np.isin(server, taken)]
    if len(server) and not len(kept):
        raise ValueError(
            f"validation leaves the server nothing to train on: all of its {len(server)} "
            "samples are validation samples; lower the shares of validation"
        )
    return clients, kept, taken


def _refuse_without_classes(part: Partition | ServerData, dataset: Dataset) -> None:
    """Refuse a rule that goes by class if a sample has not exactly one class."""
    if part.needs_classes and not dataset.has_labels:
        targets = "several classes each" if dataset.num_classes else "numbers or tags"
        others = (
            "Iid(), ByColumn(column=...) or Overlapping(samples=...)"
            if isinstance(part, Partition)
            else "IidServer(n0=...) or FromClients(...)"
        )
        raise ValueError(
            f"{type(part).__name__} goes by the class of a sample, but the targets of "
            f"'{dataset.name}' are {targets}; take {others}, or a rule of your own"
        )


def _with_shared_data(
    clients: ClientIndices, server: Ints, count: int, key: Key
) -> ClientIndices:
    """Append to each client's samples `count` of the server's, drawn for each client."""
    if not count:
        raise ValueError(
            f"share is less than half of one of the server's {len(server)} samples, so "
            "that nothing is shared; give a larger share, or leave it out"
        )

    def drawn(client: int) -> Ints:
        return np.sort(key("share", client).choice(server, count, replace=False))

    return clients.extended(count, drawn)
