"""Reading ledger and rows together, so that no run is taken for what it is not."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from raysafl.storage.integrity import faults
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.rows import sorted_rows, without_runs
from raysafl.storage.store import Store

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Checked:
    """Ledger and rows of a sweep that match.

    Args:
        ledger: how each ended run ended, by run id. A run whose rows are not those
            that it wrote, or whose entry is of another run, has the status `damaged`, with
            the reason.
        rows: the rows of all runs but the damaged ones.
        faults: what is wrong with each damaged run, by run id.
    """

    ledger: dict[str, LedgerEntry]
    rows: pa.Table
    faults: dict[str, str]

    def rounds(self) -> "pd.DataFrame":
        """Return the rows, sorted by run, replicate and round."""
        frame: pd.DataFrame = sorted_rows(self.rows).to_pandas()
        return frame


def read_checked(store: Store, run_ids: Collection[str] | None = None) -> Checked:
    """Read ledger and rows, and find the runs whose rows are not those that they wrote.

    Args:
        store: the folder of the sweep.
        run_ids: read these runs only, or the one with this id; None for all runs.
    """
    # The ledger is read before the rows: a run that ends meanwhile is then one that
    # has not ended. In the other order its last rows would seem to be missing.
    ledger = store.ledger(run_ids)
    rows = store.table(run_ids)
    wrong = faults(ledger, rows)
    if wrong:
        # If an entry has changed, another process runs that run anew at this moment.
        now = store.ledger(wrong.keys())
        for run_id in [i for i in wrong if now.get(i) != ledger[i]]:
            del wrong[run_id]
            del ledger[run_id]
        ledger |= {i: ledger[i].damaged(why) for i, why in wrong.items()}
        rows = without_runs(rows, wrong)
    return Checked(ledger, rows, wrong)
