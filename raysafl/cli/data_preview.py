"""`raysafl data show`: what clients hold and when they come, before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.table import Table

from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.report.figures.federation import label_histogram, participation_raster
from raysafl.simulation.run import Run
from raysafl.sweep.definition import Sweep
from raysafl.sweep.prepare import dataset_of

# Largest number of rounds that can be told apart in a figure.
MOST = 1000
# Number of names of clients that the table shows.
NAMES_SHOWN = 6
# What the table shows where samples have no classes.
NO_CLASSES = "-"


@dataclass(frozen=True)
class DataCounts:
    """The samples of one distinct data configuration of a sweep.

    Attributes:
        name: the labels of the first run that has it.
        runs: the number of runs that have it.
        clients: training samples of each class at each client, [clients, classes]; all
            samples, [clients, 1], if the dataset does not give each sample one class.
        server: training samples of each class at the server, [classes], likewise.
        has_labels: whether each sample has one class.
        names: the names of the clients; empty if they have none.
        validation: the number of validation samples.
    """

    name: str
    runs: int
    clients: NDArray[np.int64]
    server: NDArray[np.int64]
    has_labels: bool = True
    names: tuple[str, ...] = ()
    validation: int = 0


def preview(
    sweep: Sweep, out: Path, labels: Mapping[str, str], rounds: int = MOST
) -> tuple[Table, list[Path]]:
    """Count and draw each distinct data configuration and policy of a sweep.

    The first seed of each run is taken. A policy is drawn as if the training accuracy
    were never known.

    Args:
        sweep: the sweep.
        out: the folder for the figures.
        labels: only runs with these labels are taken.
        rounds: the maximum number of rounds that are drawn.

    Returns:
        A table of the data, and the files of the figures; and for clients with names,
        the file of a table of them.

    Raises:
        ValueError: no run has these labels, or the data is missing or does not fit.
    """
    runs = _runs(sweep, labels)
    datasets: dict[str, Dataset] = {}
    counted: list[DataCounts] = []
    pictures: dict[str, bytes] = {}
    for name, run, count in _distinct_parts(runs, _data_of):
        dataset = dataset_of(run, datasets)
        item = _count_samples(name, run, count, dataset)
        counted.append(item)
        title = f"{dataset.name}, {len(item.clients)} clients ({name})"
        classes = dataset.names if item.has_labels else ("samples",)
        pictures[f"labels-{len(counted)}.png"] = label_histogram(
            item.clients, item.server, classes, title
        )
        if item.names:
            table = _client_table(item, dataset.names)
            pictures[f"clients-{len(counted)}.csv"] = table
    for number, (name, run, _) in enumerate(_distinct_parts(runs, _policy_of), 1):
        kind = type(run.participation).__name__
        raster = participation_raster(
            _simulate_cohorts(run, datasets, min(rounds, run.rounds)),
            f"{kind} ({name})",
        )
        pictures[f"participation-{number}.png"] = raster
    out.mkdir(parents=True, exist_ok=True)
    for file, picture in pictures.items():
        (out / file).write_bytes(picture)
    return _data_table(counted), [out / file for file in pictures]


def _runs(sweep: Sweep, labels: Mapping[str, str]) -> dict[str, Run]:
    """Return the runs with these labels, by their labels as text."""
    if not sweep.is_grid:
        if not isinstance(sweep.base, Run) or labels:
            why = "no labels to choose by" if labels else "nothing to show beforehand"
            raise ValueError(
                f"sweep '{sweep.name}' samples its runs, so there is {why}"
            )
        return {"base run": sweep.base}
    by_id = {run.id: run for run in sweep.labelled().values()}
    manifest = sweep.manifest()
    labels_of = manifest.labels()
    return {
        ", ".join(f"{axis} {value}" for axis, value in labels_of[i].items()): by_id[i]
        for i in manifest.select(labels)
    }


def _data_of(run: Run) -> str:
    """Return what the split of the run's first seed depends on."""
    return f"{run.data.to_json()} {run.data.split_seed(run.seed)}"


def _policy_of(run: Run) -> str:
    """Return what the cohorts of a run depend on."""
    return f"{run.participation.to_json()} {run.data.clients} {run.seed}"


def _distinct_parts(
    runs: Mapping[str, Run], key: Callable[[Run], str]
) -> list[tuple[str, Run, int]]:
    """Group runs by a key; return (name, run, number of runs) of the first of each group."""
    groups: dict[str, list[str]] = {}
    for name, run in runs.items():
        groups.setdefault(key(run), []).append(name)
    return [
        (
            own[0] if len(own) == 1 else f"{own[0]}, the first of {len(own)} runs",
            runs[own[0]],
            len(own),
        )
        for own in groups.values()
    ]


def _count_samples(name: str, run: Run, runs: int, dataset: Dataset) -> DataCounts:
    """Count the samples of each class at each client and at the server."""
    split = run.data.split(dataset, run.seed)
    labels = dataset.train.y
    classes = dataset.num_classes
    if not dataset.has_labels:
        labels = np.zeros(len(dataset.train), np.int64)
        classes = 1
    clients = [np.bincount(labels[part], minlength=classes) for part in split.clients]
    server = np.bincount(labels[split.server], minlength=classes)
    return DataCounts(
        name,
        runs,
        np.stack(clients),
        server,
        dataset.has_labels,
        run.data.client_names(dataset, split),
        len(split.validation),
    )


def _client_table(item: DataCounts, classes: Sequence[str]) -> bytes:
    """Write a line for each client: its number, its name, and its samples of each class."""
    counts: dict[str, Any] = {"client": range(len(item.names)), "name": item.names}
    counts["samples"] = item.clients.sum(axis=1).tolist()
    frame = pd.DataFrame(counts)
    if item.has_labels:
        names = classes or [str(c) for c in range(item.clients.shape[1])]
        labels = [f"class {name}" for name in names]
        frame = pd.concat([frame, pd.DataFrame(item.clients, columns=labels)], axis=1)
    return frame.to_csv(index=False).encode()


def _simulate_cohorts(
    run: Run, datasets: dict[str, Dataset], rounds: int
) -> NDArray[np.bool_]:
    """Return which clients come in which rounds, as booleans [rounds, clients]."""
    came = np.zeros((rounds, run.data.clients), bool)
    policy = run.policy_on(dataset_of(run, datasets))
    state = policy.init()
    for number in range(rounds):
        key = Key(run.seed, number)
        state, cohort = policy.pick(state, run.data.clients, key, None)
        came[number, cohort.ids] = True
    return came


def entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the entropy of each client's labels in bits.

    It is 0 for a client with one class, and log2(C) for equal shares of all C classes.

    Args:
        counts: samples of each class at each client, [clients, classes].
    """
    total = counts.sum(axis=1, keepdims=True)
    # A client without samples has no shares, and so the entropy 0.
    share = counts / np.maximum(total, 1)
    logs = np.log2(share, out=np.zeros(share.shape), where=share > 0)
    bits: NDArray[np.float64] = np.abs((share * logs).sum(axis=1))
    return bits


def _range(values: NDArray[np.int64]) -> str:
    """Write minimum, median and maximum, or the value if all are equal."""
    low = values.min()
    high = values.max()
    return f"{low}" if low == high else f"{low} / {np.median(values):g} / {high}"


def _clients_text(item: DataCounts) -> str:
    """Write the number of clients, and the names of the first ones if they have names."""
    number = str(len(item.clients))
    if not item.names:
        return number
    more = ", ..." if len(item.names) > NAMES_SHOWN else ""
    return f"{number}: {', '.join(item.names[:NAMES_SHOWN])}{more}"


def _data_table(counted: Sequence[DataCounts]) -> Table:
    """Write one line per data configuration."""
    table = Table(
        "data of",
        "runs",
        "clients",
        "samples\nmin / median / max",
        "classes per client",
        "label entropy,\nbits (maximum)",
        "server\nsamples",
        "server\nclasses",
    )
    has_validation = any(item.validation for item in counted)
    if has_validation:
        table.add_column("validation\nsamples")
    for item in counted:
        most = np.log2(item.clients.shape[1])
        table.add_row(
            item.name,
            str(item.runs),
            _clients_text(item),
            _range(item.clients.sum(axis=1)),
            _range((item.clients > 0).sum(axis=1)) if item.has_labels else NO_CLASSES,
            f"{entropy(item.clients).mean():.2f} ({most:.2f})"
            if item.has_labels
            else NO_CLASSES,
            str(item.server.sum()),
            str((item.server > 0).sum()) if item.has_labels else NO_CLASSES,
            *([str(item.validation)] if has_validation else []),
        )
    return table
