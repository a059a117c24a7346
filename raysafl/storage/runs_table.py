"""The table `runs.parquet`: a row for each replicate of a run, from the ledger and the rows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raysafl.core.component import flatten
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest
from raysafl.storage.rows import scalar_names
from raysafl.storage.statistics import TOTALS, UNTIL, summarise_each
from raysafl.storage.store import RunResult, RunResults, Store

if TYPE_CHECKING:
    import pandas as pd

ORIGIN = "python numpy torch ray raysafl commit host device engine".split()
# The columns of the rows from which statistics are computed.
NEEDED = ("round", "kind", "trained", "test_accuracy", "test_loss", *TOTALS)


def write_runs_table(store: Store) -> "pd.DataFrame":
    """Make the table of runs of which a cell has ended, write it, and return it."""
    frame = make_runs_table(store, store.read(unended=False))
    store.write_runs(frame)
    return frame


def make_runs_table(
    store: Store, results: RunResults | None = None, named: Iterable[str] = ()
) -> "pd.DataFrame":
    """Make the table of all runs in the manifest that have begun.

    Other cells in the folder are ignored: those of a grid that was changed since. A cell
    that has not ended, or whose rows are damaged, is `waiting` or `running`; of its statistics
    it has the counts so far (`rounds`, `total_steps`, ...) alone.

    Args:
        store: the folder of the sweep.
        results: its results; None: they are read, with cells that have not ended.
        named: statistics that are asked for by name, such as `rounds_to_r2_0.7`, besides
            those that the manifest names.
    """
    # Imported here, because pandas takes some tenths of a second to import.
    import pandas as pd

    manifest = store.manifest()
    results = results or store.read()
    begun = results.begun
    if not begun:
        return pd.DataFrame(columns=["run_id", "status", "reason"])

    replicates = np.array([len(run.cells) for run in begun.values()])
    wanted = [*manifest.named_statistics, *named]
    statistics = _statistics(results.rows, list(begun), replicates, manifest, wanted)
    names = [str(name) for name in statistics]
    name = store.path.name
    columns = label_columns(manifest)
    rows = []
    for run_id, run in begun.items():
        labels = {name: of[run_id] for name, of in columns.items() if run_id in of}
        rows.append(_run_row(name, run, labels, names))
    # What the replicates of a run share is repeated for each of them.
    frame = pd.DataFrame(rows).loc[np.repeat(np.arange(len(rows)), replicates)]
    frame = frame.reset_index(drop=True)
    ends = [end for run in begun.values() for end in run.cells]
    frame["replicate"] = np.concatenate([np.arange(n) for n in replicates])
    frame["cell"] = [end.cell for end in ends]
    frame["seed"] += frame["replicate"]
    frame["status"] = [end.status.value for end in ends]
    frame["reason"] = [end.reason for end in ends]
    partitions = [end.partition_seed for end in ends]
    frame["partition_seed"] = pd.array(partitions, dtype="Int64")
    for name in ORIGIN:
        frame[name] = [getattr(end, name) for end in ends]
    if "chance" in frame:
        classes = np.array([end.num_classes for end in ends], float)
        frame["chance"] = 1 / np.where(classes > 0, classes, np.nan)
    frame[names] = statistics
    # A mean or a last value is none as long as rounds are to come.
    goes_on = frame["status"].isin([status for status in Status if status.unended])
    measured = [name for name in names if frame[name].dtype == float]
    frame.loc[goes_on, measured] = np.nan
    # A copy is one block of memory again, where pandas would warn of many.
    return frame.copy()


def over_replicates(
    runs: "pd.DataFrame", names: Sequence[str]
) -> "tuple[pd.DataFrame, pd.DataFrame, pd.Series[int]]":
    """Return means, standard deviations (n - 1) and number of replicates, by run id.

    Only finished replicates count, and those of runs that were stopped as a whole. Of
    `rounds_to_50` and the like there is a mean if all of them have reached the value.

    Args:
        runs: the rows of `runs.parquet`.
        names: the statistics.
    """
    is_over = runs["status"].isin([Status.FINISHED, Status.STOPPED])
    done = runs[is_over].groupby("run_id")
    replicates = done.size().rename("replicates")
    means = done[list(names)].mean()
    for name in [name for name in names if name.startswith(UNTIL)]:
        means[name] = means[name].where(done[name].count() == replicates)
    return means, done[list(names)].std(), replicates


def label_columns(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return for each column of labels, such as `label.s`, the label of each run."""
    labels = manifest.labels()
    types = {axis: _type_of(labels, axis) for axis in manifest.axes}
    return {
        f"label.{axis}": {
            i: kind(own[axis]) for i, own in labels.items() if axis in own
        }
        for axis, kind in types.items()
    }


def _type_of(
    labels: Mapping[str, Mapping[str, Label]], axis: str
) -> Callable[[Any], Any]:
    """Return the type of an axis's column: a number or a truth value if all labels are.

    Args:
        labels: the labels of all runs of the sweep, by run id.
        axis: the axis.
    """
    values = [own.get(axis) for own in labels.values()]
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return bool
    if kinds == {int}:
        fits = all(-(2**63) <= int(value or 0) < 2**63 for value in values)
        return int if fits else str
    return float if kinds <= {int, float} else str


def _run_row(
    sweep: str, run: RunResult, labels: Mapping[str, Any], statistics: Sequence[str]
) -> dict[str, Any]:
    """Return the row of a run, in which what its replicates differ in is still open."""
    config = run.config
    return {
        "run_id": run.run_id,
        "replicate": 0,
        "cell": "",
        "seed": config.get("seed", 0),
        "partition_seed": None,
        "sweep": sweep,
        **labels,
        "status": "",
        "reason": "",
        **dict.fromkeys(statistics),
        # What is not judged by an accuracy has no level of chance.
        **({"chance": np.nan} if "final" in statistics else {}),
        **{
            f"config.{name}": None if value is None else str(value)
            for name, value in flatten(config).items()
        },
        "config": json.dumps(config),
        "started": run.started,
        "seconds": run.seconds,
        **dict.fromkeys(ORIGIN, ""),
    }


def _statistics(
    rows: pa.Table,
    run_ids: Sequence[str],
    replicates: NDArray[np.int64],
    manifest: Manifest,
    named: Sequence[str],
) -> "pd.DataFrame":
    """Return the statistics of each replicate of some runs, in order.

    Args:
        rows: the rows of these runs, and maybe of others, in any order.
        run_ids: the runs.
        replicates: how many replicates each of them has.
        manifest: declares the further columns of the rows.
        named: statistics that are asked for by name.
    """
    number = pc.index_in(rows["run_id"], pa.array(run_ids, pa.string()))
    run = pc.fill_null(number, -1).to_numpy()
    replicate = rows["replicate"].to_numpy()
    known = (run >= 0) & (replicate >= 0) & (replicate < replicates[run])
    place = (np.cumsum(replicates) - replicates)[run] + replicate
    order = np.lexsort((rows["round"].to_numpy(), place))
    order = order[known[order]]
    needed = [*NEEDED, *scalar_names(rows.schema)]
    frame = rows.select(needed).take(pa.array(order)).to_pandas()
    lengths = np.bincount(place[order], minlength=int(replicates.sum()))
    return summarise_each(frame, lengths, manifest.columns, manifest.quality, named)
