"""Reading ledger and rows together, so that no run is taken for what it is not."""

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from raysafl.storage.integrity import faults
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.rows import sorted_rows
from raysafl.storage.store import Store


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

    def rounds(self) -> pd.DataFrame:
        """Return the rows, sorted by run, replicate and round."""
        frame: pd.DataFrame = sorted_rows(self.rows).to_pandas()
        return frame


def read_checked(store: Store, run_id: str = "") -> Checked:
    """Read ledger and rows, and find the runs whose rows are not those that they wrote.

    Args:
        store: the folder of the sweep.
        run_id: read this run only; empty for all runs.
    """
    # The ledger is read before the rows: a run that ends meanwhile is then one that
    # has not ended. In the other order its last rows would seem to be missing.
    ledger = _ledger(store, run_id)
    rows = store.table(run_id)
    wrong = faults(ledger, rows)
    if wrong:
        # If an entry has changed, another process runs that run anew at this moment.
        now = _ledger(store, run_id)
        for run_id in [i for i in wrong if now.get(i) != ledger[i]]:
            del wrong[run_id]
            del ledger[run_id]
        ledger |= {i: ledger[i].damaged(why) for i, why in wrong.items()}
        there = pc.is_in(rows["run_id"], pa.array(sorted(wrong), pa.string()))
        rows = rows.filter(pc.invert(there))
    return Checked(ledger, rows, wrong)


def _ledger(store: Store, run_id: str) -> dict[str, LedgerEntry]:
    if not run_id:
        return store.ledger()
    entry = store.ledger_entry(run_id)
    return {} if entry is None else {run_id: entry}
