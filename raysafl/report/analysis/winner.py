"""Which run of a search is best, and how good it is on data that had no part in the choice."""

import math
from dataclasses import dataclass, field

import pandas as pd

from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest
from raysafl.storage.statistics import declaration_of, quality_statistics


@dataclass(frozen=True)
class Winner:
    """The best run of a sweep. All numbers are means over its replicates, of the last round.

    Attributes:
        run_id: its id.
        labels: its labels; in a search, the values that were drawn for it.
        config: its configuration as JSON, which `Run.from_json` reads.
        metric: the column of `rounds/` that it was chosen by.
        mode: whether the `max` or the `min` of it is best.
        value: its value of it.
        quality: the column by which runs are judged on the test set.
        test: its value of that.
        candidates: how many runs it was chosen from: those of which all replicates have
            finished.
    """

    run_id: str
    labels: dict[str, Label]
    config: str = field(repr=False)
    metric: str
    mode: str
    value: float
    quality: str
    test: float
    candidates: int

    @property
    def is_held_out(self) -> bool:
        """Whether the test set had no part in the choice."""
        return not self.metric.startswith(("test_", "clients_"))


def best_of(runs: pd.DataFrame, manifest: Manifest) -> Winner:
    """Return the best run of a sweep, and raise a ValueError if `winner_of` finds none."""
    found = winner_of(runs, manifest)
    if found is None:
        raise ValueError(
            f"no run of sweep '{manifest.name}' has finished with all its replicates, "
            "so that there is no best one; the columns `status` and `reason` of `runs` say "
            "why runs ended"
        )
    return found


def winner_of(runs: pd.DataFrame, manifest: Manifest) -> Winner | None:
    """Return the best run of a sweep; None if no run has finished.

    The choice goes by the last value of the sweep's goal. Without a goal it goes by what
    the runs are judged by: on the validation samples if all finished runs have some,
    otherwise on the test set.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.
    """
    if runs.empty:
        return None
    whole = (runs["status"] == Status.FINISHED).groupby(runs["run_id"]).transform("all")
    done = runs[whole]

    def last(column: str) -> "pd.Series[float]":
        name = quality_statistics(column)[0]
        values = done[name] if name in done else pd.Series(math.nan, done.index)
        found: pd.Series[float] = values.astype(float).groupby(done["run_id"]).mean()
        return found

    if manifest.goal is not None:
        metric, mode = manifest.goal
    else:
        on_val = manifest.quality.replace("test_", "val_", 1)
        metric = manifest.quality if last(on_val).isna().any() else on_val
        declared = declaration_of(metric, manifest.columns)
        mode = "min" if declared and not declared.higher_is_better else "max"
    values = last(metric).dropna()
    if values.empty:
        return None
    run_id = str(values.idxmax() if mode == "max" else values.idxmin())
    config = done.loc[done["run_id"] == run_id, "config"].iloc[0]
    return Winner(
        run_id=run_id,
        labels=manifest.labels()[run_id],
        config=str(config),
        metric=metric,
        mode=mode,
        value=float(values[run_id]),
        quality=manifest.quality,
        test=float(last(manifest.quality)[run_id]),
        candidates=len(values),
    )
