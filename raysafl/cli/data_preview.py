"""`raysafl data show`: what clients hold and when they take part, before anything runs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich.table import Table

from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.core.text import first_of
from raysafl.report.figures.clients import label_histogram, participation_raster
from raysafl.simulation.run import Run
from raysafl.sweep.definition import Sweep
from raysafl.sweep.prepare import dataset_of

# Largest number of rounds that can be told apart in a figure.
MOST = 1000
# Number of names of clients that the table shows.
NAMES_SHOWN = 6


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
    lines: list[dict[str, str]] = []
    files: dict[str, bytes] = {}
    for number, (name, run, count) in enumerate(_distinct_parts(runs, _data_of), 1):
        dataset = dataset_of(run, datasets)
        split = run.data.split(dataset, run.seed)
        classes, label_of = _classes(dataset)
        held, (server,) = (
            np.stack(
                [np.bincount(label_of[own], minlength=len(classes)) for own in parts]
            )
            for parts in (split.clients, [split.server])
        )
        title = f"{dataset.name}, {len(held)} clients ({name})"
        names = classes if dataset.names or not dataset.has_labels else ()
        files[f"labels-{number}.png"] = label_histogram(held, server, names, title)
        clients = run.data.client_names(dataset, split)
        if clients:
            columns = classes if dataset.has_labels else ()
            files[f"clients-{number}.csv"] = _client_table(held, clients, columns)
        line = {"data of": name, "runs": str(count)}
        line |= _row_of_numbers(held, server, clients, dataset.has_labels)
        if len(split.validation):
            line["validation\nsamples"] = str(len(split.validation))
        lines.append(line)
    for number, (name, run, _) in enumerate(_distinct_parts(runs, _policy_of), 1):
        kind = type(run.participation).__name__
        took_part = _simulate_cohorts(run, datasets, min(rounds, run.rounds))
        raster = participation_raster(took_part, f"{kind} ({name})")
        files[f"participation-{number}.png"] = raster
    out.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (out / file).write_bytes(content)
    # A dash stands for what one has not.
    frame = pd.DataFrame(lines).fillna("-")
    table = Table(*frame.columns)
    for row in frame.itertuples(index=False):
        table.add_row(*row)
    return table, [out / file for file in files]


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
    parts = []
    for first, *others in groups.values():
        count = 1 + len(others)
        name = f"{first}, the first of {count} runs" if others else first
        parts.append((name, runs[first], count))
    return parts


def _classes(dataset: Dataset) -> tuple[Sequence[str], NDArray[np.int64]]:
    """Return the names of the classes, and the class of each training sample.

    All samples are of one class if the dataset does not give each sample one.
    """
    if not dataset.has_labels:
        return ("samples",), np.zeros(len(dataset.train), np.int64)
    names = dataset.names or [str(c) for c in range(dataset.num_classes)]
    return names, dataset.train.y


def _client_table(
    held: NDArray[np.int64], clients: Sequence[str], classes: Sequence[str]
) -> bytes:
    """Write a line for each client: its number, its name, and its samples of each class."""
    samples = held.sum(axis=1)
    frame = pd.DataFrame(
        {"client": range(len(clients)), "name": clients, "samples": samples}
        | {f"class {name}": held[:, c] for c, name in enumerate(classes)}
    )
    return frame.to_csv(index=False).encode()


def _simulate_cohorts(
    run: Run, datasets: dict[str, Dataset], rounds: int
) -> NDArray[np.bool_]:
    """Return which clients take part in which rounds, as booleans [rounds, clients]."""
    took_part = np.zeros((rounds, run.data.clients), bool)
    policy = run.policy_on(dataset_of(run, datasets))
    state = policy.init()
    for number in range(rounds):
        key = Key(run.seed, number)
        state, cohort = policy.pick(state, run.data.clients, key, None)
        took_part[number, cohort.ids] = True
    return took_part


def _range(values: NDArray[np.int64]) -> str:
    """Write minimum, median and maximum, or the value if all are equal."""
    low = values.min()
    high = values.max()
    return f"{low}" if low == high else f"{low} / {np.median(values):g} / {high}"


def _row_of_numbers(
    held: NDArray[np.int64],
    server: NDArray[np.int64],
    clients: Sequence[str],
    has_labels: bool,
) -> dict[str, str]:
    """Write what the table says of one data configuration, by its columns.

    The entropy of a client's labels is 0 bits for one class, and log2(C) for equal shares of
    all C classes. A client without samples has the entropy 0.

    Args:
        held: samples of each class at each client, [clients, classes].
        server: samples of each class at the server, [classes].
        clients: the names of the clients; empty if they have none.
        has_labels: whether each sample has one class.
    """
    names = f": {first_of(clients, NAMES_SHOWN)}" if clients else ""
    of_clients = {
        "clients": f"{len(held)}{names}",
        "samples\nmin / median / max": _range(held.sum(axis=1)),
    }
    of_server = {"server\nsamples": str(server.sum())}
    if has_labels:
        share = held / np.maximum(held.sum(axis=1, keepdims=True), 1)
        logs = np.log2(share, out=np.zeros(share.shape), where=share > 0)
        mean = np.abs((share * logs).sum(axis=1)).mean()
        of_clients["classes per client"] = _range((held > 0).sum(axis=1))
        of_clients["label entropy,\nbits (maximum)"] = (
            f"{mean:.2f} ({np.log2(len(server)):.2f})"
        )
        of_server["server\nclasses"] = str((server > 0).sum())
    return of_clients | of_server
