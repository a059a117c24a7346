"""What a sweep has come to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.store import Store
from raysafl.sweep.shown import outcome_html, outcome_text

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Outcome:
    """The result of a sweep. A notebook shows it as its table and its figure.

    Args:
        store: the sweep's folder.
        manifest: what the sweep is.
        runs: the table of `runs.parquet`.
        skipped: how many runs needed no new attempt.
        missing: how many runs have not ended.
        tracked: whether MLflow has all results; None if there was nothing new to log.
        seconds: wall time.
        shown: the ids of the runs whose end was printed while the sweep ran.
    """

    store: Store
    manifest: Manifest
    runs: "pd.DataFrame"
    skipped: int
    missing: int
    tracked: bool | None
    seconds: float
    shown: frozenset[str] = frozenset()

    @property
    def bad(self) -> "pd.DataFrame":
        """The rows of the replicates that failed or diverged, with the reason."""
        return self.runs[
            self.runs["status"].isin([status for status in Status if status.bad])
        ]

    @property
    def ok(self) -> bool:
        """Whether every run ended, and none failed or diverged."""
        return self.bad.empty and not self.missing

    def __repr__(self) -> str:
        return outcome_text(self)

    def _repr_html_(self) -> str:
        """Write the table and the figure for a notebook."""
        return outcome_html(self)
