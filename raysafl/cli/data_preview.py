"""`raysafl data show`: what an experiment's clients hold and when they come, before it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from raysafl.core.problem import Dataset
from raysafl.core.randomness import Key
from raysafl.report.figures.federation import label_histogram, participation_raster
from raysafl.simulation.run import Run
from raysafl.sweep.definition import Sweep

MOST = 1000  # rounds drawn: more are one grey


@dataclass(frozen=True)
class Shown:
    """One distinct data configuration of a sweep, counted."""

    name: str  # the labels of the first run that has it
    runs: int
    clients: NDArray[np.int64]  # [clients, classes] training samples
    server: NDArray[np.int64]  # [classes]


def show(
    sweep: Sweep, out: Path, labels: Mapping[str, str], rounds: int = MOST
) -> tuple[Table, list[Path]]:
    """Statistics of each distinct data configuration, and the pictures drawn into `out`.

    Counted for each run's first seed. A policy is drawn as if training accuracy were never
    known, over at most so many rounds.

    Raises:
        ValueError: no run has these labels, or the data is missing or does not fit.
    """
    runs = _runs(sweep, labels)
    datasets: dict[str, Dataset] = {}
    shown: list[Shown] = []
    pictures: dict[str, bytes] = {}
    for name, run, count in _distinct(runs, _data_of):
        source = run.data.source_key
        if source not in datasets:
            datasets[source] = run.data.load()
        dataset = datasets[source]
        item = _count(name, run, count, dataset)
        shown.append(item)
        title = f"{dataset.name}, {len(item.clients)} clients ({name})"
        pictures[f"labels-{len(shown)}.png"] = label_histogram(
            item.clients, item.server, dataset.names, title
        )
    for number, (name, run, _) in enumerate(_distinct(runs, _policy_of), 1):
        kind = type(run.participation).__name__
        raster = participation_raster(_came(run, min(rounds, run.rounds)), f"{kind} ({name})")
        pictures[f"participation-{number}.png"] = raster
    out.mkdir(parents=True, exist_ok=True)
    for file, picture in pictures.items():
        (out / file).write_bytes(picture)
    return _table(shown), [out / file for file in pictures]


def _runs(sweep: Sweep, labels: Mapping[str, str]) -> dict[str, Run]:
    """The runs that bear these labels, by what tells them apart."""
    if not sweep.is_grid:
        if sweep.base is None or labels:
            why = "no labels to choose by" if labels else "nothing to show beforehand"
            raise ValueError(f"sweep '{sweep.name}' samples its runs, so there is {why}")
        return {"base run": sweep.base}
    by_id = {run.id: run for run in sweep.labelled().values()}
    manifest = sweep.manifest()
    told = manifest.labels()
    return {
        ", ".join(f"{axis} {value}" for axis, value in told[i].items()): by_id[i]
        for i in manifest.select(labels)
    }


def _data_of(run: Run) -> str:
    """What the split depends on; the seed only if the data has none of its own."""
    own = getattr(run.data, "seed", None)
    return f"{run.data.to_json()} {run.seed if own is None else own}"


def _policy_of(run: Run) -> str:
    return f"{run.participation.to_json()} {run.data.clients} {run.seed}"


def _distinct(runs: Mapping[str, Run], key: Callable[[Run], str]) -> list[tuple[str, Run, int]]:
    """(name of the first, run, how many are like it) for each value of the key."""
    groups: dict[str, list[str]] = {}
    for name, run in runs.items():
        groups.setdefault(key(run), []).append(name)
    return [(names[0], runs[names[0]], len(names)) for names in groups.values()]


def _count(name: str, run: Run, runs: int, dataset: Dataset) -> Shown:
    split = run.data.split(dataset, run.seed)
    labels, classes = dataset.train.y, dataset.num_classes
    clients = [np.bincount(labels[part], minlength=classes) for part in split.clients]
    server = np.bincount(labels[split.server], minlength=classes)
    return Shown(name, runs, np.stack(clients), server)


def _came(run: Run, rounds: int) -> NDArray[np.bool_]:
    """[rounds, clients]: who came."""
    came = np.zeros((rounds, run.data.clients), bool)
    state = run.participation.init()
    for number in range(rounds):
        key = Key(run.seed, number)
        state, cohort = run.participation.pick(state, run.data.clients, key, None)
        came[number, cohort.ids] = True
    return came


def entropy(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of the labels of each row [clients, classes], in bits: 0 for one class, log2(C) for all."""
    total = counts.sum(axis=1, keepdims=True)
    share = counts / np.maximum(total, 1)
    logs = np.log2(share, out=np.zeros(share.shape), where=share > 0)
    bits: NDArray[np.float64] = np.abs((share * logs).sum(axis=1))
    return bits


def _range(values: NDArray[np.int64]) -> str:
    low, middle, high = values.min(), np.median(values), values.max()
    return f"{low}" if low == high else f"{low} / {middle:g} / {high}"


def _table(shown: Sequence[Shown]) -> Table:
    table = Table(
        *("data of", "runs", "clients", "samples\nmin / median / max", "classes per client"),
        *("label entropy,\nbits (most)", "server\nsamples", "server\nclasses"),
    )
    for item in shown:
        most = np.log2(item.clients.shape[1])
        table.add_row(
            item.name,
            str(item.runs),
            str(len(item.clients)),
            _range(item.clients.sum(axis=1)),
            _range((item.clients > 0).sum(axis=1)),
            f"{entropy(item.clients).mean():.2f} ({most:.2f})",
            str(item.server.sum()),
            str((item.server > 0).sum()),
        )
    return table
