"""What of a run's rows goes to MLflow: curves, summary and the times they are drawn at."""

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
STATISTICS = ["final", "last5", "last10", "rolling20", "best", "after_server"]  # with a spread


def curves(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per round: mean and standard deviation over replicates, means of running sums."""
    means = rows.groupby("round")[MEANS].mean()
    spread = rows.groupby("round")[MEANS].std().add_suffix("_std")
    sums = rows[["round"]].join(rows.groupby("replicate")[SUMS].cumsum())
    return means.join(spread).join(sums.groupby("round").mean())


def finite(lines: pd.DataFrame) -> Iterator[tuple[int, str, float]]:
    """(round, name, value) of all numbers that can be drawn."""
    rounds = [int(step) for step in lines.index]
    for name in lines.columns:
        for step, value in zip(rounds, lines[name].tolist(), strict=True):
            if math.isfinite(value):
                yield step, str(name), float(value)


def elapsed(rows: pd.DataFrame) -> dict[int, int]:
    """Milliseconds from a run's start to the end of each round."""
    seconds = rows.groupby("round")["seconds"].max().fillna(0.0).cumsum()
    return {int(r): int(1000 * s) for r, s in zip(seconds.index, seconds.tolist(), strict=True)}


def summary(rows: pd.DataFrame) -> dict[str, float]:
    """The columns of `runs.parquet`, means over replicates; `final_std`, ... their deviations."""
    if rows.empty:
        return {}
    parts = pd.DataFrame([summarise(part) for _, part in rows.groupby("replicate")])
    spread = parts[STATISTICS].std().add_suffix("_std")
    return {str(k): float(v) for k, v in pd.concat([parts.mean(), spread]).items()}


def digest(rows: pd.DataFrame, through: int) -> str:
    """A fingerprint of the rows up to a round, by which rows that changed are noticed."""
    told = rows.loc[rows["round"] <= through, ["replicate", "round", *MEANS, *SUMS]]
    return hashlib.sha256(told.to_numpy(dtype="float64").tobytes()).hexdigest()[:16]


def started(ending: LedgerEntry | None) -> int | None:
    """When a run started, in milliseconds since 1970, if its ledger entry tells."""
    try:
        when = datetime.fromisoformat(ending.started if ending else "")
    except ValueError:
        return None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return int(1000 * when.timestamp())


def lasted(ending: LedgerEntry | None, rows: pd.DataFrame) -> int:
    """How long a run took, or has taken so far, in milliseconds."""
    if ending is not None and ending.seconds is not None:
        return int(1000 * ending.seconds)
    return max(elapsed(rows).values(), default=0)
