"""Who holds which samples in each cell, and which rows of the dataset names mean there.

Every process that hosts the cells finds the same. An evaluation asks for sums over rows by
their names (`raysafl.core.work.Rows`). They are cut into units, each of which any process can
compute. Its sums are the same to the last bit whichever process does, and they are added in
the order of the units. So the answer does not depend on how units are divided among actors,
nor on what else is evaluated.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from raysafl.core.algorithm import by_steps
from raysafl.core.client_indices import StoredIndices, group_by_owner
from raysafl.core.component import method_name
from raysafl.core.problem import EVERYONE, SERVER, Dataset, FederatedData, Split
from raysafl.core.work import (
    OWN,
    Cell,
    ClientTests,
    Evaluation,
    Floats,
    GroupSums,
    Ints,
    Rows,
    Summed,
    Tasks,
    TestsOn,
)
from raysafl.training.inputs import Held

# The rows of the test set, of validation samples and of training samples are cut into
# units of so many. It is the same on every machine, since sums over units of another
# length would be rounded differently. Classes and clients' own test samples stay whole.
SPAN = 2500
CUT = ("test", "validation", "train")
NO_OWN_TESTS = (
    "eval_clients.on='own' needs test samples that belong to one client each, but {}; give "
    "Federation(own_tests=0.2) to hold out a fifth of each client's samples, or on='labels'"
)


class Unit(NamedTuple):
    """Rows on which some models are evaluated together.

    Args:
        rows: The name of the rows.
        cell: The cell that says whose rows they are.
        models: The numbers of the models, among those of all requests.
        group: The number of the group among those that the name means.
        start: The position of the first row in the group.
        size: The number of rows.
    """

    rows: Rows
    cell: int
    models: Ints
    group: int
    start: int
    size: int

    @property
    def cost(self) -> int:
        """The number of samples that are evaluated."""
        return self.size * len(self.models)


class Groups(NamedTuple):
    """The rows that a name means, in groups.

    Args:
        indices: The positions of each group's samples.
        sizes: The number of samples in each group.
        of_train: Whether these are positions among the training samples, and not in the
            test set.
    """

    indices: Sequence[slice | Ints]
    sizes: Ints
    of_train: bool = False


class Population:
    """The clients and the server of each cell, their samples, and what names of rows mean.

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
        # By the number of a split: cells may share one.
        self._own: dict[int, Groups] = {}
        self._labels: dict[int, Ints] = {}

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

    def units(self, asked: Sequence[Evaluation]) -> list[Unit]:
        """Return the units that give the sums over named rows.

        Models for which a name means the same rows share their units.
        """
        sharing: dict[tuple[Rows, int], tuple[int, list[int]]] = {}
        number = 0
        for request in asked:
            for cell, names in zip(request.cells_R.tolist(), request.over, strict=True):
                for rows in names:
                    owner = self._owner(rows, cell)
                    sharing.setdefault((rows, owner), (cell, []))[1].append(number)
                number += 1
        units = []
        for (rows, _), (cell, numbers) in sharing.items():
            models = np.array(numbers)
            for group, size in enumerate(self._group_sizes(cell, rows).tolist()):
                span = SPAN if rows.kind in CUT else max(1, size)
                # A group without samples has a unit, too, whose sums are 0.
                for start in range(0, max(1, size), span):
                    length = min(span, size - start)
                    units.append(Unit(rows, cell, models, group, start, length))
        return units

    def _owner(self, rows: Rows, cell: int) -> int:
        """Return a number that is equal for cells in which a name means the same."""
        if rows.kind in ("test", "classes"):
            return 0
        of_cells = self.validation_of if rows.kind == "validation" else self.split_of
        return int(of_cells[cell])

    def _group_sizes(self, cell: int, rows: Rows) -> Ints:
        """Return the number of samples in each group that a name means, [G]."""
        sizes_G = self._groups(cell, rows).sizes
        return sizes_G if rows.groups is None else sizes_G[list(rows.groups)]

    def rows_of(self, unit: Unit) -> tuple[bool, slice | Ints]:
        """Return where the samples of a unit are.

        Returns:
            Whether they are training samples, else they are in the test set; and their
            positions.
        """
        groups = self._groups(unit.cell, unit.rows)
        chosen = unit.rows.groups
        found = groups.indices[unit.group if chosen is None else chosen[unit.group]]
        stop = unit.start + unit.size
        if isinstance(found, slice):
            return groups.of_train, slice(unit.start, stop)
        return groups.of_train, found[unit.start : stop]

    def _groups(self, cell: int, rows: Rows) -> Groups:
        """Return the rows that a name means.

        Raises:
            ValueError: The data do not say which test samples belong to a client.
        """
        split = self.splits[cell]
        match rows.kind:
            case "test":
                held: slice | Ints = slice(0, len(self.dataset.test))
                return Groups([held], np.array([len(self.dataset.test)]))
            case "classes":
                return self._classes
            case "own":
                number = int(self.split_of[cell])
                if number not in self._own:
                    self._own[number] = self._find_own(cell, split)
                return self._own[number]
            case "validation":
                held = split.validation
            case _:
                held = np.concatenate([split.of(i) for i in rows.clients])
        return Groups([held], np.array([len(held)]), of_train=True)

    def summed(
        self, asked: Sequence[Evaluation], units: Sequence[Unit], sums_nS: Floats
    ) -> list[list[Summed]]:
        """Return the sums over named rows from those over their units.

        Args:
            asked: The requests.
            units: What `units` returned for them.
            sums_nS: The sums [n] of each model of the first unit, then of each model of
                the second, and so on.

        Returns:
            For each request the sums of each of its models.
        """
        answers: list[list[Summed]] = [[{} for _ in own.cells_R] for own in asked]
        of_models = [one for answer in answers for one in answer]
        total_RGn = np.empty((0, 0, 0))
        stop = 0
        for unit in units:
            start = stop
            stop += len(unit.models)
            if unit.group == unit.start == 0:
                # The first unit of its rows; the others follow it.
                size_G = self._group_sizes(unit.cell, unit.rows)
                total_RGn = np.zeros((len(unit.models), len(size_G), len(sums_nS)))
                for model, total_Gn in zip(
                    unit.models.tolist(), total_RGn, strict=True
                ):
                    of_models[model][unit.rows] = GroupSums(size_G, total_Gn)
            total_RGn[:, unit.group] += sums_nS[:, start:stop].T
        return answers

    def client_tests(self, cell: int, on: TestsOn) -> ClientTests:
        """Return what judges the clients of a cell.

        A client without test samples of its own is judged by none.

        Raises:
            ValueError: No client has test samples of its own, or one holds no samples,
                or none of the test samples fits its labels.
        """
        held_N = self.splits[cell].clients.sizes
        labels_NC: Ints | None = None
        sizes_C: Ints | None = None
        if self.dataset.has_labels:
            labels_NC = self._labels_of(int(self.split_of[cell]))
            sizes_C = self._classes.sizes
        if on == "own":
            tests_N = self._group_sizes(cell, OWN)
            judged_N = (tests_N > 0) | (tests_N > 0).any()
        elif labels_NC is None or sizes_C is None:
            raise ValueError(
                f"eval_clients.on='labels' needs samples with one class each, and those "
                f"of '{self.dataset.name}' have none; give on='own', with "
                "Federation(own_tests=0.2) for example"
            )
        else:
            tests_N = ((labels_NC > 0) * sizes_C).sum(1)
            judged_N = tests_N > 0
        empty = np.flatnonzero(~judged_N | (held_N == 0)).tolist()
        if empty:
            raise ValueError(
                f"eval_clients.on='{on}' finds no test samples for client {empty[0]}, which "
                f"holds {held_N[empty[0]]} samples; let each client hold some, and take a "
                "larger test set, or give Federation(own_tests=0.2) and on='own'"
            )
        return ClientTests(on, held_N, tests_N, labels_NC, sizes_C)

    @cached_property
    def _classes(self) -> Groups:
        y_S = self.dataset.test.y.astype(np.int64)
        all_S = np.arange(len(y_S))
        classes = group_by_owner(y_S, all_S, self.dataset.num_classes)
        return Groups(classes, classes.sizes)

    def _labels_of(self, number: int) -> Ints:
        """Return how many samples [N, C] of each class clients themselves hold in a split."""
        if number not in self._labels:
            cell = int(np.argmax(self.split_of == number))
            samples, owner, clients = _own_samples(self.splits[cell])
            classes = self.dataset.num_classes
            y = self.dataset.train.y[samples].astype(np.int64)
            counts = np.bincount(owner * classes + y, minlength=clients * classes)
            self._labels[number] = counts.reshape(clients, classes)
        return self._labels[number]

    def _find_own(self, cell: int, split: Split) -> Groups:
        """Find the test samples that belong to each client."""
        if split.tests is not None:
            return Groups(split.tests, split.tests.sizes, of_train=True)
        owners = self.cells[cell].data.owners
        train = owners(self.dataset.train)
        test = owners(self.dataset.test)
        if train is None or test is None:
            what = f"the test set of '{self.dataset.name}' does not say whose its samples are"
            raise ValueError(NO_OWN_TESTS.format(what))
        samples, owner, clients = _own_samples(split)
        pairs = np.unique(np.stack([train[samples], owner]), axis=1)
        pairs = pairs[:, pairs[0] >= 0]
        users, firsts, counts = np.unique(
            pairs[0], return_index=True, return_counts=True
        )
        if (counts > 1).any():
            shared = firsts[counts > 1][0]
            one, other = pairs[1, shared : shared + 2]
            what = (
                f"clients {one} and {other} both hold samples of user {pairs[0, shared]} "
                "(partition=ByUser() lets one client hold them)"
            )
            raise ValueError(NO_OWN_TESTS.format(what))
        known = np.isin(test, users)
        place = np.searchsorted(users, test[known])
        own = group_by_owner(pairs[1, firsts][place], np.flatnonzero(known), clients)
        return Groups(own, own.sizes)


def _own_samples(split: Split) -> tuple[Ints, Ints, int]:
    """Return the samples of all clients, client after client.

    Those that the server shares with a client, which are its last ones, are left out.

    Returns:
        The samples, the client of each, and the number of clients.
    """
    sizes = split.clients.sizes - split.shared
    samples = (
        np.concatenate([own[: len(own) - split.shared] for own in split.clients])
        if split.shared
        else split.clients.concatenated()
    )
    return samples, np.repeat(np.arange(len(sizes)), sizes), len(sizes)


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
