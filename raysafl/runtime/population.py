"""Who holds which samples, in each cell."""

from collections.abc import Sequence

import numpy as np

from raysafl.core.algorithm import by_steps
from raysafl.core.client_indices import StoredIndices
from raysafl.core.component import method_name
from raysafl.core.problem import EVERYONE, SERVER, Dataset, FederatedData, Split
from raysafl.core.work import Cell, Ints, Tasks
from raysafl.training.inputs import Held


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
        >>> population.sizes(cell=0)[0][3]
        120
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
        # The number of each cell's split among the distinct ones.
        number_of = {key: number for number, key in enumerate(by_key)}
        self.split_of = np.array([number_of[key] for key in keys])
        self._store(list(by_key.values()))
        # Equal numbers for cells with the same validation samples.
        known: dict[bytes, int] = {}
        numbers = {
            key: known.setdefault(own.validation.tobytes(), len(known))
            for key, own in by_key.items()
        }
        self.validation_of = np.array([numbers[key] for key in keys])

    def _store(self, splits: Sequence[Split]) -> None:
        """Put the samples of all splits into one array, of which their own become views.

        Tables with a row for each split say of each client where its samples begin in the
        array, and how many they are; the last two columns are those of EVERYONE (-2) and
        SERVER (-1). Samples that a split computes when they are needed begin at -1.
        """
        none = StoredIndices(np.empty(0, np.int64), np.empty(0, np.int64))
        stored = [
            split.clients if isinstance(split.clients, StoredIndices) else none
            for split in splits
        ]
        parts = [
            samples
            for split, clients in zip(splits, stored, strict=True)
            for samples in (clients.flat, split.server)
        ]
        self._flat_S = np.concatenate(parts).astype(np.int64, copy=False)
        stops = np.cumsum(list(map(len, parts)))
        views = np.split(self._flat_S, stops[:-1])
        most = max(1, *map(len, stored))
        self._start_DN = np.full((len(splits), most + 2), -1)
        self._size_DN = np.zeros_like(self._start_DN)
        for d, (split, clients) in enumerate(zip(splits, stored, strict=True)):
            clients.flat, split.server = views[2 * d : 2 * d + 2]
            sizes = [len(clients.flat), len(split.server)]
            starts = stops[2 * d : 2 * d + 2] - sizes
            self._size_DN[d, -2:] = sizes
            self._start_DN[d, -1] = starts[1]
            if clients is not none:
                self._start_DN[d, -2] = starts[0]
                self._start_DN[d, : len(clients)] = starts[0] + clients.starts[:-1]
                self._size_DN[d, : len(clients)] = clients.sizes

    def held(self, tasks: Tasks) -> Held:
        """Return the samples that the clients of tasks train on.

        Raises:
            ValueError: A client has none.
        """
        start_T, samples_T = self._places(tasks)
        if not samples_T.all():
            cell, client = tasks.columns[["cell", "client"]][
                samples_T.argmin()
            ].tolist()
            raise ValueError(_why_empty(self.cells[cell].data, client))
        (computed,) = np.nonzero(start_T < 0)
        if not len(computed):
            return Held(self._flat_S, start_T, samples_T)
        owners = tasks.columns[["cell", "client"]][computed].tolist()
        parts = [self.splits[cell].of(client) for cell, client in owners]
        ends = len(self._flat_S) + np.cumsum(samples_T[computed])
        start_T[computed] = ends - samples_T[computed]
        return Held(np.concatenate([self._flat_S, *parts]), start_T, samples_T)

    def _places(self, tasks: Tasks) -> tuple[Ints, Ints]:
        """Return where the samples of tasks' clients begin, -1 if they are computed.

        Returns:
            [T] the positions in the array of all splits, and the numbers of samples.
        """
        cell_T = tasks.columns["cell"]
        client_T = tasks.columns["client"]
        # The clients of a split that computes their samples may be more than the columns.
        within_T = np.minimum(client_T, self._start_DN.shape[1] - 3)
        place_T = (self.split_of[cell_T], within_T)
        start_T = self._start_DN[place_T]
        samples_T = self._size_DN[place_T]
        for t in np.flatnonzero(start_T < 0).tolist():
            samples_T[t] = self.splits[cell_T[t]].size(client_T[t])
        return start_T, samples_T

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
        _, samples_T = self._places(tasks)
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
    if (len(split.validation) > 0) != data.has_validation:
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
        f"{data.splitter} leaves a client empty that is to train: {who} no samples. Give "
        "it at least one, or let the policy never pick it"
    )
