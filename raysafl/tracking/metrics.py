"""Reads runs of a sweep's folder, and turns them into MLflow's own objects."""

import math
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from raysafl.core.record import (
    FURTHER_NAME,
    VIRTUAL_SECONDS,
    Summary,
    columns_with,
)
from raysafl.storage.manifest import Manifest
from raysafl.storage.rows import scalar_names, sorted_rows
from raysafl.storage.runs_table import make_runs_table, over_replicates
from raysafl.storage.statistics import STATISTICS
from raysafl.storage.store import RunResult, RunResults, Store

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Metric, Param, RunTag


# A statistic over the replicates of a run: its mean, and its standard deviation (n - 1),
# which is NaN for one replicate.
Spread = tuple[float, float]

MEANS = columns_with(Summary.MEAN)
SUMS = columns_with(Summary.SUM)
# All columns but the cohorts, whose lists take most of the memory.
NEEDED = ["run_id", "replicate", "round", "kind", "trained", "seconds", *MEANS, *SUMS]
# The groups of curves that measure quality; all others measure what it took.
GROUPS = ("test", "train", "val", "clients")
WORK = "work"
# A run has this statistic in MLflow whatever the sweep's table shows: what it cost.
COST = "total_bytes"


def metric_name(column: str) -> str:
    """Return the name in MLflow of the curve of a column of `rounds/`.

    MLflow draws a section of charts for each word before a `/`, in the order of the
    alphabet, and a last section for the names without one. So quality comes first, then
    what it took, and the single values of the final statistics come last.

    Example:
        >>> metric_name("test_accuracy"), metric_name("val_mae"), metric_name("steps")
        ('test/accuracy', 'val/mae', 'work/steps')
    """
    group, _, rest = column.partition("_")
    return f"{group}/{rest}" if group in GROUPS else f"{WORK}/{column}"


def shown_statistics(manifest: Manifest) -> list[str]:
    """Return the names of the final statistics that MLflow gets as metrics.

    They are what ranks the runs, and those of the sweep's table. MLflow draws a bar for each
    on a run's page, so the others are in the file `statistics.json` of the run.
    """
    table = manifest.table
    names = [manifest.ranked_by[0], table.statistic, *table.also, COST]
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Reading:
    """A run as the folder has it at a moment.

    Args:
        run: how far it is, or how it has ended.
        rows: its rows, sorted by replicate and round, without the cohorts.
        curves: its curves, see `curves_of`.
        statistics: if it has ended, its final statistics over replicates by name; their
            means are finite.
    """

    run: RunResult
    rows: "pd.DataFrame"
    curves: "pd.DataFrame"
    statistics: dict[str, Spread]

    @property
    def has_ended(self) -> bool:
        """Whether all of the run's cells have ended."""
        return not any(end.status.unended for end in self.run.cells)

    @property
    def lasted(self) -> int:
        """How long the run took, or has taken so far, in milliseconds."""
        return int(1000 * self.run.seconds)


def read_runs(store: Store, run_ids: Collection[str], live: bool) -> dict[str, Reading]:
    """Read some runs together, each of which may have no rows.

    Args:
        store: the folder of the sweep.
        run_ids: the ids of the runs.
        live: whether runs that have not ended go on.
    """
    results = store.read(run_ids, is_running=live)
    needed = [*NEEDED, *scalar_names(results.rows.schema)]
    rows: pd.DataFrame = sorted_rows(results.rows.select(needed)).to_pandas()
    every = curves_of(rows)
    curves = {str(i): part.droplevel(0) for i, part in every.groupby(level=0)}
    statistics = final_statistics(store, results)
    rows_by_run = {str(i): part for i, part in rows.groupby("run_id")}
    return {
        i: Reading(
            run=run,
            rows=rows_by_run.get(i, rows[:0]),
            curves=curves.get(i, every[:0].droplevel(0)),
            statistics=statistics.get(i, {}),
        )
        for i, run in results.runs.items()
    }


def curves_of(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Return the curves of many runs: a line for each run id and evaluated round.

    A point is the mean over the replicates that have the round. Columns that add up
    over rounds are the mean over replicates of their running sum. The column `time`
    holds the milliseconds from the start of the run to the end of the round.

    Args:
        rows: the rows of the runs, sorted by run, replicate and round.
    """
    keys = ["run_id", "round"]
    sums = [*SUMS, *{VIRTUAL_SECONDS}.intersection(rows)]
    further = [n for n in map(str, rows) if FURTHER_NAME.fullmatch(n)]
    means = [*MEANS, *(n for n in further if n not in (*MEANS, *sums))]
    running = rows[sums].groupby([rows["run_id"], rows["replicate"]]).cumsum()
    lines = rows[[*keys, *means, "seconds"]].join(running).groupby(keys)
    curves = lines[[*means, *sums]].mean()
    seconds = lines["seconds"].max().fillna(0.0)
    curves["time"] = (1000 * seconds.groupby(level=0).cumsum()).astype(np.int64)
    return curves


def final_statistics(store: Store, results: RunResults) -> dict[str, dict[str, Spread]]:
    """Return the statistics of the ended runs whose means are finite, by run id.

    They are those of `raysafl results`: what diverged or failed is in no mean.
    """
    runs = results.runs.items()
    ended = {i: r for i, r in runs if not any(end.status.unended for end in r.cells)}
    table = make_runs_table(store, results._replace(runs=ended))
    if table.empty:
        return {}
    known = {**STATISTICS, **store.manifest().known(table)}
    # A replicate without rows has no statistics.
    table = table[table["rounds"] > 0]
    names = [str(name) for name in table if name in known]
    mean_of_each, std_of_each, _ = over_replicates(table, names)
    means, stds = (own.to_dict("index") for own in (mean_of_each, std_of_each))
    return {
        str(run_id): {
            str(name): (mean, stds[run_id][name])
            for name, mean in of_run.items()
            if np.isfinite(mean)
        }
        for run_id, of_run in means.items()
    }


def milliseconds(when: str) -> int:
    """Return a time in ISO 8601 as milliseconds since 1970; 0 if it is none."""
    try:
        time = datetime.fromisoformat(when)
    except ValueError:
        return 0
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return int(1000 * time.timestamp())


# The largest number of characters of a tag, of a parameter and of a name in MLflow.
TEXT = 8000
PARAM = 6000
NAME = 250


def points(curves: "pd.DataFrame", start: int) -> list["Metric"]:
    """Return the points of curves that are finite.

    A running sum has no points as long as it is 0, so that MLflow draws no chart of what
    never happens in a run.

    Args:
        curves: the curves of a run, see `raysafl.tracking.metrics.curves_of`.
        start: when the run started, in milliseconds since 1970.
    """
    from mlflow.entities import Metric

    rounds = curves.index.tolist()
    times = (start + curves["time"]).tolist()
    return [
        Metric(metric_name(column), value, when, round)
        for column in curves.columns.drop("time")
        for round, when, value in zip(
            rounds, times, curves[column].tolist(), strict=True
        )
        if math.isfinite(value) and (value or column not in SUMS)
    ]


def single_metrics(values: Mapping[str, float]) -> list["Metric"]:
    """Return finite numbers that belong to no round."""
    from mlflow.entities import Metric

    when = now()
    finite = {name: float(v) for name, v in values.items() if math.isfinite(v)}
    return [Metric(allowed(name), value, when, 0) for name, value in finite.items()]


def params(values: Mapping[str, Any]) -> list["Param"]:
    """Return parameters of a run."""
    from mlflow.entities import Param

    texts = {allowed(name): str(value)[:PARAM] for name, value in values.items()}
    return [Param(name, text) for name, text in texts.items()]


def run_tags(tags: Mapping[str, str]) -> list["RunTag"]:
    """Return tags of a run."""
    from mlflow.entities import RunTag

    return [RunTag(name, text) for name, text in allowed_tags(tags).items()]


def allowed_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags with names and lengths that MLflow allows."""
    return {allowed(name): text[:TEXT] for name, text in tags.items()}


def allowed(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:NAME]


def now() -> int:
    """Return the time in milliseconds since 1970."""
    return int(1000 * time.time())
