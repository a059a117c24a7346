"""Reads many runs of a sweep's folder at once, as they are to be shown in MLflow."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.manifest import Manifest
from raysafl.storage.rows import scalar_names, sorted_rows
from raysafl.storage.store import Store
from raysafl.tracking import metrics
from raysafl.tracking.metrics import Curves, Spread

if TYPE_CHECKING:
    import pandas as pd

# All columns but the cohorts, whose lists take most of the memory.
NEEDED = ["run_id", "replicate", "round", "kind", "trained", "seconds"]
NEEDED += metrics.MEANS + metrics.SUMS


@dataclass(frozen=True)
class Reading:
    """A run as the folder has it at a moment.

    Args:
        rows: its rows, sorted by replicate and round, without the cohorts.
        ending: how it ended; None if it has not ended.
        curves: its curves.
        statistics: its final statistics over replicates by name, which may be NaN.
    """

    rows: "pd.DataFrame"
    ending: LedgerEntry | None
    curves: Curves
    statistics: dict[str, Spread]

    @property
    def last_round(self) -> int:
        """The last round that has rows; -1 if there is none."""
        return self.curves.last_round

    @property
    def lasted(self) -> int:
        """How long the run took, or has taken so far, in milliseconds."""
        if self.ending is not None and self.ending.seconds is not None:
            return int(1000 * self.ending.seconds)
        return int(self.curves.times[-1]) if len(self.curves.times) else 0

    def digest(self, through: int) -> str:
        """Return a fingerprint of the rows up to a round."""
        return metrics.digest(self.rows, through)


def read_runs(
    store: Store, run_ids: Collection[str], manifest: Manifest
) -> dict[str, Reading]:
    """Read some runs together, each of which may have no rows or no ledger entry.

    Args:
        store: the folder of the sweep.
        run_ids: the ids of the runs.
        manifest: the sweep, which declares the further columns of the rows.
    """
    checked = store.read(run_ids)
    needed = [*NEEDED, *scalar_names(checked.rows.schema)]
    rows: pd.DataFrame = sorted_rows(checked.rows.select(needed)).to_pandas()
    curves = metrics.curves(rows)
    statistics = metrics.final_statistics(rows, manifest.columns, manifest.quality)
    own = {str(i): part for i, part in rows.groupby("run_id")}
    return {
        i: Reading(
            rows=own.get(i, rows[:0]),
            ending=checked.ledger.get(i),
            curves=curves.get(i, metrics.NO_CURVES),
            statistics=statistics.get(i, {}),
        )
        for i in run_ids
    }
