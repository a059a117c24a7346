"""A dataset spread over clients and server."""

from dataclasses import replace
from typing import Self

import numpy as np
from pydantic import Field, SerializeAsAny, model_validator

from raysafl.core.client_indices import Ints, Parts, pack
from raysafl.core.problem import Dataset, FederatedData, Samples, Split
from raysafl.core.randomness import Key
from raysafl.data.partitions import Iid, Partition
from raysafl.data.server_data import ServerData
from raysafl.data.sources import Digits, Source, Subset


class Federation(FederatedData):
    """A dataset, M clients, a partition over them, and the server's data.

    The server's n0 samples are drawn first, the rest is spread, so that no sample is at both
    (unless the server copies what clients hold). Samples from outside the dataset stand behind
    its training samples, and no client gets them. With the default `seed` all replicates share
    one partition and differ in everything else (initial model, cohorts, batches), as in SAFARI's
    appendix B.4 ("five random initializations"); `seed=None` gives each replicate a partition of
    its own.

    `share` is data sharing (Zhao et al. 2018): this fraction of D0, drawn for each client, is
    appended to every client's data; True is all of it, as FSL compares with.
    """

    dataset: SerializeAsAny[Source] = Field(default_factory=Digits)
    partition: SerializeAsAny[Partition] = Field(default_factory=Iid)
    server: SerializeAsAny[ServerData] | None = None
    seed: int | None = Field(default=0, ge=0, lt=2**63)
    share: float = Field(default=0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _something_to_share(self) -> "Federation":
        if self.share and self.server is None:
            raise ValueError(
                "share needs server data to share; give it, for example server=IidServer(n0=500)"
            )
        return self

    @property
    def has_server_data(self) -> bool:
        """Whether the server holds samples of its own."""
        return self.server is not None

    @property
    def source_key(self) -> str:
        """The dataset's JSON, and the server data's if that comes from outside the dataset."""
        key = self.dataset.to_json()
        outside = self.server is not None and type(self.server).outside is not ServerData.outside
        return key + self.server.to_json() if outside and self.server else key

    def tested_on(self, count: int) -> Self:
        """With a draw of the test set."""
        return self.replace(dataset=Subset(dataset=self.dataset, test=count))

    def load(self) -> Dataset:
        """Read the dataset; the server's samples from outside it come behind the others."""
        dataset = self.dataset.load()
        extra = None if self.server is None else self.server.outside(dataset)
        if extra is None:
            return dataset
        train, users = dataset.train, None
        if train.users is not None:
            users = np.concatenate([train.users, np.full(len(extra), -1)])
        joined = Samples(
            np.concatenate([train.x, extra.x]),
            np.concatenate([train.y, extra.y]),
            train.scale,
            train.shift,
            users,
        )
        return replace(dataset, train=joined, outside=len(extra))

    def split_seed(self, seed: int) -> int:
        """The federation's own seed, if it has one."""
        return seed if self.seed is None else self.seed

    def split(self, dataset: Dataset, seed: int) -> Split:
        """Who holds which training samples, in replicate `seed`."""
        key = Key(self.split_seed(seed))
        own = len(dataset.train) - dataset.outside
        labels, users = dataset.train.y[:own], dataset.train.users
        held = np.empty(0, np.int64)
        if self.server is not None:
            held = self.server.draw(labels, dataset.num_classes, key("server data"))
        free = np.setdiff1d(np.arange(own), held, assume_unique=True)
        parts = self.partition.spread(
            labels[free],
            dataset.num_classes,
            self.clients,
            key("partition"),
            None if users is None else users[free],
        )
        clients = pack(parts).within(free)
        if self.server is not None:
            given, left = self.server.collect(clients, key("from clients"))
            clients = pack(left)
            held = np.concatenate([held, given, np.arange(own, len(dataset.train))])
        return Split(self._shared(clients, held, key), held)

    def _shared(self, clients: Parts, held: Ints, key: Key) -> Parts:
        """Each client's samples, and behind them the fraction of D0 that it gets."""
        count = round(self.share * len(held))
        if not count:
            return clients
        return clients.extended(
            count, lambda i: np.sort(key("share", i).choice(held, count, replace=False))
        )
