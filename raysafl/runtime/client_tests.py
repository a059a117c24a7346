"""By which test samples each client is judged, and its scores from sums over them.

Test samples are grouped: by class, or by the client that they belong to. For every
group, an evaluation gives the sums of `Evaluator.sums_on`, which do not depend on who
computes them. From them follows how well a model serves each client, see
`raysafl.simulation.per_client.PerClient`.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from raysafl.core.client_indices import (
    ClientIndices,
    Ints,
    StoredIndices,
    group_by_owner,
)
from raysafl.core.problem import Split
from raysafl.core.work import ClientScores, TestsOn
from raysafl.runtime.population import Population
from raysafl.training.evaluation import Measures

Floats: TypeAlias = NDArray[np.float64]
Kind: TypeAlias = Literal["classes", "own"]
"""Whether a group is the test samples of a class, or those of a client."""


class Groups(NamedTuple):
    """Groups of test samples.

    Args:
        indices: The positions of each group's samples.
        of_train: Whether these are positions among the training samples, from which
            they were held out, and not in the test set.
    """

    indices: ClientIndices
    of_train: bool = False


class Job(NamedTuple):
    """Groups on which the models of some cells are to be evaluated.

    Args:
        kind: What the groups are.
        cells: The cells, which have the same groups.
    """

    kind: Kind
    cells: tuple[int, ...]


class ClientTests:
    """The test samples of the clients of some cells.

    Args:
        population: Who holds which samples.
        metric: The objective's metric by which clients are compared.
    """

    def __init__(self, population: Population, metric: str) -> None:
        self.population = population
        self.dataset = population.dataset
        self.metric = metric
        # By the id of a split: cells may share one.
        self._own: dict[int, Groups] = {}
        self._labels: dict[int, Ints] = {}

    @cached_property
    def _classes(self) -> Groups:
        y_S = self.dataset.test.y.astype(np.int64)
        all_S = np.arange(len(y_S))
        return Groups(group_by_owner(y_S, all_S, self.dataset.num_classes))

    def groups(self, job: Job) -> Groups:
        """Return the groups of a job.

        Raises:
            ValueError: The data do not say which test samples belong to a client.
        """
        if job.kind == "classes":
            return self._classes
        split = self.population.splits[job.cells[0]]
        if id(split) not in self._own:
            self._own[id(split)] = self._make_own(job.cells[0], split)
        return self._own[id(split)]

    def labels(self, cell: int) -> Ints:
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

    def sizes(self, cell: int, on: TestsOn) -> tuple[list[int], list[int]]:
        """Return how many training and how many test samples each client has.

        A client without test samples of its own is judged by none.

        Raises:
            ValueError: No client has test samples of its own, or one holds no samples,
                or none of the test samples fits its labels.
        """
        held = self.population.splits[cell].clients.sizes
        tests = self._test_sizes(cell, on)
        judged = tests > 0
        if on == "own" and judged.any():
            judged[:] = True
        empty = np.flatnonzero(~judged | (held == 0))
        if len(empty):
            self._refuse_empty(cell, int(empty[0]), on)
        return held.tolist(), tests.tolist()

    def _test_sizes(self, cell: int, on: TestsOn) -> Ints:
        if on == "own":
            return self.groups(Job("own", (cell,))).indices.sizes
        if not self.dataset.has_labels:
            raise ValueError(
                f"eval_clients.on='labels' needs samples with one class each, and those "
                f"of '{self.dataset.name}' have none; give on='own', with "
                "Federation(own_tests=0.2) for example"
            )
        sizes_C = self._classes.indices.sizes
        sizes: Ints = ((self.labels(cell) > 0) * sizes_C).sum(1)
        return sizes

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

    def _make_own(self, cell: int, split: Split) -> Groups:
        """Find the test samples that belong to each client."""
        if split.tests is not None:
            return Groups(split.tests, of_train=True)
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
        return Groups(group_by_owner(pairs[1, firsts][place], rows, len(sizes)))

    def jobs(self, on: Mapping[int, TestsOn]) -> list[Job]:
        """Return all groups that the clients of some cells are judged by.

        Where samples have classes, all cells are evaluated on the groups of the
        classes, too: by them one sees how classes fare that only absent clients hold.
        """
        jobs = [Job("classes", tuple(on))] if self.dataset.has_labels else []
        by_split: dict[int, list[int]] = {}
        for cell, own in on.items():
            if own == "own":
                split = self.population.splits[cell]
                by_split.setdefault(id(split), []).append(cell)
        return jobs + [Job("own", tuple(cells)) for cells in by_split.values()]

    def scores(
        self,
        measures: Measures,
        on: Mapping[int, TestsOn],
        came: Mapping[int, NDArray[np.bool_]],
        jobs: Sequence[Job],
        sums: Sequence[Floats],
    ) -> dict[int, ClientScores]:
        """Compute the scores of the clients of some cells.

        Args:
            measures: What is measured.
            on: By which test samples the clients of each cell are judged.
            came: For each of them, whether it has trained so far.
            jobs: The `jobs` of these cells.
            sums: For each job the sums [G, n, R] over its G groups, of the models of
                its R cells.
        """
        found: dict[Kind, dict[int, Floats]] = {"classes": {}, "own": {}}
        for job, sums_GnR in zip(jobs, sums, strict=True):
            for r, cell in enumerate(job.cells):
                found[job.kind][cell] = sums_GnR[:, :, r]
        scores = {}
        for cell, own in on.items():
            if own == "own":
                sums_Nn = found["own"][cell]
                counts_N = self.groups(Job("own", (cell,))).indices.sizes
            else:
                weight_NC, counts_N = self._weights(self.labels(cell))
                sums_Nn = _weighted_sums(weight_NC, found["classes"][cell])
            quality_N = [
                self._value(measures, sums_n, int(count))
                for sums_n, count in zip(sums_Nn, counts_N, strict=True)
            ]
            loss_N = [
                _value(measures, "loss", sums_n, int(count))
                for sums_n, count in zip(sums_Nn, counts_N, strict=True)
            ]
            absent = None
            if self.dataset.has_labels:
                sums_Cn = found["classes"][cell]
                absent = self._absent(measures, cell, came[cell], sums_Cn)
            scores[cell] = ClientScores(np.array(quality_N), np.array(loss_N), absent)
        return scores

    def _absent(
        self,
        measures: Measures,
        cell: int,
        participated_N: NDArray[np.bool_],
        sums_Cn: Floats,
    ) -> float | None:
        """Return the metric on the classes that only absent clients hold."""
        held_NC = self.labels(cell) > 0
        sizes_C = self._classes.indices.sizes
        absent_C = held_NC.any(0) & ~held_NC[participated_N].any(0) & (sizes_C > 0)
        if not absent_C.any():
            return None
        weight_1C = absent_C[None].astype(np.float64)
        (sums_n,) = _weighted_sums(weight_1C, sums_Cn)
        return self._value(measures, sums_n, int(sizes_C[absent_C].sum()))

    def _weights(self, labels_NC: Ints) -> tuple[Floats, Ints]:
        """Return how much a test sample of each class counts for each client.

        The m test samples of a client's classes count as m samples that match its
        labels: those of class c, which are n_c, together count as m times the share of
        c in its own samples.

        Args:
            labels_NC: How many samples of each class the clients hold.

        Returns:
            The weights [N, C], and the counts m [N].
        """
        sizes_C = self._classes.indices.sizes
        usable_NC = labels_NC * (sizes_C > 0)
        counts_N = ((usable_NC > 0) * sizes_C).sum(1)
        share_NC = usable_NC / np.maximum(usable_NC.sum(1), 1)[:, None]
        return counts_N[:, None] * share_NC / np.maximum(sizes_C, 1), counts_N

    def personal_groups(
        self, cell: int, on: TestsOn, client: int
    ) -> tuple[list[Ints], bool, Floats, int]:
        """Return the groups of test samples by which one client is judged.

        Returns:
            The positions of each group's samples; whether they are training samples;
            the weight [G] of each group's sums; and how many samples they count as.
        """
        if on == "own":
            groups = self.groups(Job("own", (cell,)))
            rows = groups.indices[client]
            return [rows], groups.of_train, np.ones(1), len(rows)
        weight_1C, (count,) = self._weights(self.labels(cell)[client][None])
        classes = np.flatnonzero(weight_1C[0])
        rows_G = [self._classes.indices[int(c)] for c in classes]
        return rows_G, False, weight_1C[0, classes], int(count)

    def personal_quality(
        self, measures: Measures, weight_G: Floats, sums_Gn: Floats, count: int
    ) -> float:
        """Return the metric of one client from the sums over its groups."""
        (sums_n,) = _weighted_sums(weight_G[None], sums_Gn)
        return self._value(measures, sums_n, count)

    def _value(self, measures: Measures, sums_n: Floats, count: int) -> float:
        return _value(measures, self.metric, sums_n, count)


def _value(measures: Measures, name: str, sums_n: Floats, count: int) -> float:
    """Return the value of one of the measures from the sums of all of them.

    It is NaN if there is no sample.
    """
    if not count:
        return float("nan")
    start = 0
    for other, size in measures.sizes.items():
        if other == name:
            value: Any = measures.metrics[name].value(
                sums_n[start : start + size], count
            )
            return float(value)
        start += size
    raise KeyError(name)


def _weighted_sums(weight_NG: Floats, sums_Gn: Floats) -> Floats:
    """Return the weighted sums over groups for each client, [N, n].

    They are added in the order of the groups: a matrix product would be rounded
    differently for other numbers of clients.
    """
    total_Nn = np.zeros((len(weight_NG), sums_Gn.shape[1]))
    for weight_N, sums_n in zip(weight_NG.T, sums_Gn, strict=True):
        # A loss may be infinite in a class that a client does not hold.
        some = np.flatnonzero(weight_N)
        total_Nn[some] += weight_N[some, None] * sums_n
    return total_Nn


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
