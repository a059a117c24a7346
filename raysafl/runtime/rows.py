"""Names of rows of the dataset, which every process that hosts the cells resolves alike.

An evaluation asks for sums over rows by their names (`raysafl.core.work.Rows`). They are
cut into units, each of which any process can compute. Its sums are the same to the last
bit whichever process does, and they are added in the order of the units. So the answer
does not depend on how units are divided among actors, nor on what else is evaluated.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, NoReturn

import numpy as np

from raysafl.core.client_indices import (
    Ints,
    StoredIndices,
    group_by_owner,
)
from raysafl.core.problem import Split
from raysafl.core.work import (
    OWN,
    ClientTests,
    Evaluation,
    Floats,
    GroupSums,
    Rows,
    Summed,
    TestsOn,
)
from raysafl.runtime.population import Population

# The rows of the test set, of validation samples and of training samples are cut into
# units of so many. It is the same on every machine, since sums over units of another
# length would be rounded differently. Classes and clients' own test samples stay whole.
SPAN = 2500
CUT = ("test", "validation", "train")


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


class NamedRows:
    """Finds the rows that names mean in some cells.

    Args:
        population: Who holds which samples.
    """

    def __init__(self, population: Population) -> None:
        self.population = population
        self.dataset = population.dataset
        # By the id of a split: cells may share one.
        self._own: dict[int, Groups] = {}
        self._labels: dict[int, Ints] = {}

    def units(self, asked: Sequence[Evaluation]) -> list[Unit]:
        """Return the units that give the sums over named rows.

        Models for which a name means the same rows share their units.
        """
        sharing: dict[tuple[Rows, int], tuple[int, list[Ints]]] = {}
        first = 0
        for request in asked:
            number_R = np.arange(first, first + len(request.cells_R))
            first += len(number_R)
            list_R = np.array(list(map(id, request.over)))
            lists = dict(zip(list_R.tolist(), request.over, strict=True))
            for key, names in lists.items():
                chosen_R = list_R == key
                cells = request.cells_R[chosen_R]
                numbers = number_R[chosen_R]
                for rows in names:
                    owners = self._owners(rows)[cells]
                    for owner in np.unique(owners).tolist():
                        own = owners == owner
                        shared = (int(cells[own.argmax()]), list[Ints]())
                        _, parts = sharing.setdefault((rows, owner), shared)
                        parts.append(numbers[own])
        units = []
        for (rows, _), (cell, parts) in sharing.items():
            models = np.concatenate(parts)
            for group, size in enumerate(self.sizes(cell, rows).tolist()):
                span = SPAN if rows.kind in CUT else max(1, size)
                # A group without samples has a unit, too, whose sums are 0.
                for start in range(0, max(1, size), span):
                    length = min(span, size - start)
                    units.append(Unit(rows, cell, models, group, start, length))
        return units

    def _owners(self, rows: Rows) -> Ints:
        """Return a number for each cell, equal for cells in which a name means the same."""
        if rows.kind in ("test", "classes"):
            return np.zeros(len(self.population.cells), np.int64)
        if rows.kind == "validation":
            return self.population.validation_of
        return self.population.split_of

    def sizes(self, cell: int, rows: Rows) -> Ints:
        """Return the number of samples in each group that a name means, [G]."""
        sizes_G = self._groups(cell, rows).sizes
        return sizes_G if rows.groups is None else sizes_G[list(rows.groups)]

    def of(self, unit: Unit) -> tuple[bool, slice | Ints]:
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
        split = self.population.splits[cell]
        match rows.kind:
            case "test":
                size = len(self.dataset.test)
                return Groups([slice(0, size)], np.array([size]))
            case "validation":
                held = split.validation
                return Groups([held], np.array([len(held)]), of_train=True)
            case "train":
                held = np.concatenate([split.of(i) for i in rows.clients])
                return Groups([held], np.array([len(held)]), of_train=True)
            case "classes":
                return self._classes
            case _:
                return self._own_tests(cell, split)

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
                size_G = self.sizes(unit.cell, unit.rows)
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
        held_N = self.population.splits[cell].clients.sizes
        labels_NC: Ints | None = None
        sizes_C: Ints | None = None
        if self.dataset.has_labels:
            labels_NC = self._labels_of(cell)
            sizes_C = self._classes.sizes
        if on == "own":
            tests_N = self.sizes(cell, OWN)
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
        empty = np.flatnonzero(~judged_N | (held_N == 0))
        if len(empty):
            self._refuse_empty(cell, int(empty[0]), on)
        return ClientTests(on, held_N, tests_N, labels_NC, sizes_C)

    @cached_property
    def _classes(self) -> Groups:
        y_S = self.dataset.test.y.astype(np.int64)
        all_S = np.arange(len(y_S))
        classes = group_by_owner(y_S, all_S, self.dataset.num_classes)
        return Groups(classes, classes.sizes)

    def _own_tests(self, cell: int, split: Split) -> Groups:
        """Return the test samples that belong to each client."""
        if id(split) not in self._own:
            self._own[id(split)] = self._find_own(cell, split)
        return self._own[id(split)]

    def _labels_of(self, cell: int) -> Ints:
        """Return how many samples [N, C] of each class each client itself holds."""
        split = self.population.splits[cell]
        if id(split) not in self._labels:
            samples, sizes = _own_samples(split)
            classes = self.dataset.num_classes
            owner = np.repeat(np.arange(len(sizes)), sizes)
            y = self.dataset.train.y[samples].astype(np.int64)
            counts = np.bincount(owner * classes + y, minlength=len(sizes) * classes)
            self._labels[id(split)] = counts.reshape(len(sizes), classes)
        return self._labels[id(split)]

    def _refuse_empty(self, cell: int, client: int, on: TestsOn) -> NoReturn:
        held = int(self.population.splits[cell].clients.sizes[client])
        if not held:
            raise ValueError(
                f"eval_clients judges every client, but client {client} holds no samples; "
                "take another partition or fewer clients, or leave eval_clients out"
            )
        if on == "labels":
            raise ValueError(
                f"eval_clients finds no test samples for client {client}: the test set has "
                f"none of the classes of its {held} samples; take a larger test set, or "
                "give on='own'"
            )
        raise ValueError(
            "eval_clients finds no test samples for any client: none in the test set is of "
            "their users; give Federation(own_tests=0.2) to hold out some of their own "
            "samples, or on='labels'"
        )

    def _find_own(self, cell: int, split: Split) -> Groups:
        """Find the test samples that belong to each client."""
        if split.tests is not None:
            return Groups(split.tests, split.tests.sizes, of_train=True)
        owners = self.population.cells[cell].data.owners
        train = owners(self.dataset.train)
        test = owners(self.dataset.test)
        if train is None or test is None:
            raise ValueError(
                f"eval_clients.on='own' needs test samples of each client, and the test "
                f"set of '{self.dataset.name}' does not say whose its samples are; give "
                "Federation(own_tests=0.2) to hold out a fifth of each client's samples, "
                "or on='labels'"
            )
        samples, sizes = _own_samples(split)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        pairs = np.unique(np.stack([train[samples], owner]), axis=1)
        pairs = pairs[:, pairs[0] >= 0]
        users, firsts, counts = np.unique(
            pairs[0], return_index=True, return_counts=True
        )
        if (counts > 1).any():
            shared = firsts[counts > 1][0]
            one, other = pairs[1, shared : shared + 2]
            raise ValueError(
                f"eval_clients.on='own' needs users whose samples are at one client, and "
                f"clients {one} and {other} both hold samples of user {pairs[0, shared]}; "
                "take partition=ByUser(), or give Federation(own_tests=0.2) to hold out a "
                "fifth of each client's samples"
            )
        known = np.isin(test, users)
        place = np.searchsorted(users, test[known])
        rows = np.flatnonzero(known)
        own = group_by_owner(pairs[1, firsts][place], rows, len(sizes))
        return Groups(own, own.sizes)


def _own_samples(split: Split) -> tuple[Ints, Ints]:
    """Return the samples of all clients, client after client, and how many each has.

    Those that the server shares with a client, which are its last ones, are left out.
    """
    if not split.shared:
        return split.clients.concatenated(), split.clients.sizes
    parts = [samples[: len(samples) - split.shared] for samples in split.clients]
    own = StoredIndices(
        np.concatenate(parts), np.array([len(part) for part in parts], np.int64)
    )
    return own.flat, own.sizes
