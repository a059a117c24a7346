"""Turns a run's rows into what MLflow stores: curves, summaries, and their times."""

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, datetime

import pandas as pd

from raysafl.core.record import Summary, columns_with
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.statistics import summarise

MEANS = columns_with(Summary.MEAN)
SUMS = columns_with(Summary.SUM)
# These are logged with their standard deviation over replicates.
STATISTICS = ["final", "last5", "last10", "rolling20", "best", "after_server"]


def metric_curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per round: mean and standard deviation over replicates.

    Columns that add up over rounds are the mean over replicates of their running sum.
    """
    means = rows.groupby("round")[MEANS].mean()
    spread = rows.groupby("round")[MEANS].std().add_suffix("_std")
    sums = rows[["round"]].join(rows.groupby("replicate")[SUMS].cumsum())
    return means.join(spread).join(sums.groupby("round").mean())


def finite(lines: pd.DataFrame) -> Iterator[tuple[int, str, float]]:
    """Yield (round, name, value) of all finite numbers."""
    rounds = [int(step) for step in lines.index]
    for name in lines.columns:
        for step, value in zip(rounds, lines[name].tolist(), strict=True):
            if math.isfinite(value):
                yield step, str(name), float(value)


def elapsed(rows: pd.DataFrame) -> dict[int, int]:
    """Return the milliseconds from the start of a run to the end of each round."""
    seconds = rows.groupby("round")["seconds"].max().fillna(0.0).cumsum()
    return {
        int(r): int(1000 * s)
        for r, s in zip(seconds.index, seconds.tolist(), strict=True)
    }


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """Return the statistics of a run as means over replicates, some with `_std` as well."""
    if rows.empty:
        return {}
    parts = pd.DataFrame([summarise(part) for _, part in rows.groupby("replicate")])
    spread = parts[STATISTICS].std().add_suffix("_std")
    return {str(k): float(v) for k, v in pd.concat([parts.mean(), spread]).items()}


def digest(rows: pd.DataFrame, through: int) -> str:
    """Return a fingerprint of the rows up to a round, by which changed rows are noticed."""
    columns = rows.loc[rows["round"] <= through, ["replicate", "round", *MEANS, *SUMS]]
    return hashlib.sha256(columns.to_numpy(dtype="float64").tobytes()).hexdigest()[:16]


def started(ending: LedgerEntry | None) -> int | None:
    """Return when a run started, in milliseconds since 1970; None if it is not known."""
    try:
        when = datetime.fromisoformat(ending.started if ending else "")
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return int(1000 * when.timestamp())


def lasted(ending: LedgerEntry | None, rows: pd.DataFrame) -> int:
    """Return how long a run took, or has taken so far, in milliseconds."""
    if ending is not None and ending.seconds is not None:
        return int(1000 * ending.seconds)
    return max(elapsed(rows).values(), default=0)
