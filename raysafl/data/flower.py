"""The partitioners of Flower's package flwr-datasets, as partitions."""

from collections.abc import Sequence
from inspect import signature
from typing import Any

import numpy as np
from pydantic import Field, JsonValue

from raysafl.core.client_indices import Ints
from raysafl.core.text import nearest
from raysafl.data.partitions import Partition, SamplesToSpread


class FlowerPartitioner(Partition):
    """A partitioner of Flower's package flwr-datasets spreads the samples.

    The partitioner is given a row for each sample, with the columns `label`, the class or
    the number to predict, and `user`, the number of whose the sample is, if the dataset
    knows it. Partition i is client i. Unless `options` gives them, an argument
    `num_partitions` is the number of clients, and an argument `seed` is drawn. With the
    `seed` of a program of Flower, 42 by default, each client holds what it holds there
    if the samples are in the same order.

    The package is not installed with raysafl: pip install flwr-datasets. A subclass that
    defines `partitioner` takes one with arguments that JSON cannot hold, or one of its own.
    """

    name: str = Field(description="The class in flwr_datasets.partitioner.")
    options: dict[str, JsonValue] = Field(
        default={}, description="Its arguments by name, such as `partition_by`."
    )

    def partitioner(self, clients: int, seed: int) -> Any:
        """Make the partitioner, which has no dataset yet.

        Args:
            clients: the number of clients.
            seed: what it may draw from.

        Raises:
            ValueError: the package has no such class.
        """
        from flwr_datasets import partitioner as known

        if self.name not in known.__all__:
            raise ValueError(
                f"flwr_datasets.partitioner has no '{self.name}': "
                f"{nearest(self.name, known.__all__)}"
            )
        kind = getattr(known, self.name)
        given = {"num_partitions": clients, "seed": seed}
        taken = {n: v for n, v in given.items() if n in signature(kind).parameters}
        return kind(**taken | self.options)

    def spread(
        self, samples: SamplesToSpread, clients: int, rng: np.random.Generator
    ) -> Sequence[Ints]:
        """Give each client the samples of one partition.

        Raises:
            ValueError: the package is not installed, or refuses the arguments or the
                samples; or the number of partitions is not that of the clients.
        """
        count = len(samples.labels)
        columns = {"row": range(count), "label": samples.labels.tolist()}
        if samples.users is not None:
            columns["user"] = samples.users.tolist()
        try:
            from datasets import Dataset

            partitioner = self.partitioner(clients, int(rng.integers(2**31)))
            partitioner.dataset = Dataset.from_dict(columns)
            made = partitioner.num_partitions
            parts = [
                partitioner.load_partition(i)["row"] for i in range(min(made, clients))
            ]
        except ImportError as error:
            raise ValueError(
                f"{type(self).__name__} needs flwr-datasets ({error}): pip install "
                "flwr-datasets"
            ) from error
        # A column that is not there is a KeyError.
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.name} of flwr-datasets: {error}") from error
        if made != clients:
            raise ValueError(
                f"{self.name} makes {made} partitions, but there are {clients} clients; "
                f"set clients={made} in Federation(...)"
            )
        return [np.sort(np.array(rows[:], np.int64)) for rows in parts]
