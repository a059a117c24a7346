"""Who holds which samples, in each cell."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from raysafl.core.algorithm import by_steps
from raysafl.core.problem import EVERYONE, SERVER, Dataset, FederatedData, Split
from raysafl.core.users_parts import method_name
from raysafl.core.work import Cell, Tasks


class Population:
    """The clients and the server of each cell, and the samples that they hold.

    It is all that the coordinator must know of the data, since it trains nothing.

    Args:
        cells: The cells. They may differ in how the dataset is split.
        dataset: The training and test samples.

    Raises:
        ValueError: The partition or the server data does not fit the dataset.

    Example:
        >>> from raysafl.quickstart import BASE
        >>> population = Population(BASE.cells, BASE.data.load())
        >>> population.held(cell=0, client=3).shape
        (120,)
    """

    def __init__(self, cells: Sequence[Cell], dataset: Dataset) -> None:
        self.cells = cells
        self.dataset = dataset
        # Cells may share a split; each distinct one is made once.
        keys = [(data.to_json(), data.split_seed(seed)) for data, seed in cells]
        distinct = dict(zip(keys, cells, strict=True))
        by_key = {
            key: data.split(dataset, seed) for key, (data, seed) in distinct.items()
        }
        for key, split in by_key.items():
            _check_validation(distinct[key].data, split)
        self.splits = [by_key[key] for key in keys]
        # The distinct sets of validation samples, and the number of each cell's set;
        # None for a cell without validation samples.
        self.validation_sets: list[NDArray[np.int64]] = []
        numbers = {key: self._numbered(own.validation) for key, own in by_key.items()}
        self.validation_of = [numbers[key] for key in keys]

    def _numbered(self, validation: NDArray[np.int64]) -> int | None:
        """Return the number of a set of validation samples; None if it is empty."""
        if not len(validation):
            return None
        for number, known in enumerate(self.validation_sets):
            if np.array_equal(known, validation):
                return number
        self.validation_sets.append(validation)
        return len(self.validation_sets) - 1

    def held(self, cell: int, client: int) -> NDArray[np.int64]:
        """Return the indices of the samples that a client trains on.

        Raises:
            ValueError: there are none.
        """
        held = self.splits[cell].of(client)
        if not len(held):
            raise ValueError(_why_empty(self.cells[cell].data, client))
        return held

    def sizes(self, cell: int) -> tuple[list[int], int]:
        """Return a cell's sample counts: of every client, and of the server."""
        split = self.splits[cell]
        return split.clients.sizes.tolist(), len(split.server)

    def client_names(self, cell: int) -> tuple[str, ...]:
        """Return the names of a cell's clients; nothing if they have none."""
        return self.cells[cell].data.client_names(self.dataset, self.splits[cell])

    def shared_bytes(self, cell: int) -> int:
        """Return the bytes of shared samples per client; see `Work.shared_bytes`."""
        return self.splits[cell].shared * self.dataset.train.sample_bytes

    def costs(self, tasks: Tasks) -> list[int]:
        """Return about how many samples each task will see."""
        column = tasks.columns
        owners = zip(column["cell"].tolist(), column["client"].tolist(), strict=True)
        samples_T = np.array([self.splits[cell].size(i) for cell, i in owners])
        cost_T = np.empty_like(samples_T)
        for local, own in tasks.alike(by_steps):
            steps_T = local.num_steps(samples_T[own], column["before"][own])
            cost_T[own] = steps_T * np.minimum(samples_T[own], local.batch_size)
        costs: list[int] = cost_T.tolist()
        return costs


def _check_validation(data: FederatedData, split: Split) -> None:
    """Refuse data that do not have the validation samples that they declare.

    Raises:
        ValueError: They declare some and have none, or the other way round.
    """
    has_some = len(split.validation) > 0
    if has_some != data.has_validation:
        raise ValueError(
            f"{method_name(data, FederatedData, 'split')} gives {len(split.validation)} "
            f"validation samples, but has_validation is {data.has_validation}; both must "
            "say the same, as results have columns for validation or have none"
        )


def _why_empty(data: FederatedData, client: int) -> str:
    """Say that a client, SERVER or EVERYONE has no samples, and what to change."""
    if client == SERVER:
        return (
            "the algorithm trains on the server's data, but the server holds none; give "
            "data.server, for example IidServer(n0=100), and let the property "
            "uses_server_data of the algorithm be True"
        )
    who = "the clients hold" if client == EVERYONE else f"client {client} holds"
    return (
        f"{data.splitter} leaves a client empty that is to "
        f"train: {who} no samples. Give it at least one, or let the policy never pick it"
    )
