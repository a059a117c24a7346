"""What whoever carries out a pack tells the driver, which alone writes results."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from raysafl.storage.ledger import CellEnd
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.statistics import ACCURACY


@dataclass(frozen=True)
class News:
    """What has become of the cells of a pack since its last report.

    Args:
        metrics: the last evaluated round, in the mean over cells, by which a scheduler, a
            search algorithm or a rule to stop goes; NaN where there is none.
        done: whether the pack needs no further attempt here.
        ends: how cells have ended.
        rows: all rows of these cells.
        clients: all of their rows in the table of clients.
        models: the files of the models that they kept, by cell.
        states: the files of the states in which they ended, if states are kept, by cell.
        checkpoint: where the cells are that go on; empty if it is not yet due again.
        saved: the cells in the checkpoint.
        running: how many cells go on.
        share: the part of the pack's rounds that have been run, from 0 to 1.
        round: the number of rounds that the cells that go on have run, in the mean.
        rounds: how many rounds the longest of them is to have.
        begun_anew: why checkpoints were not used, a line for each.
        halve: whether the driver is to try the halves of the pack.
        lost: why the sweep cannot go on; empty if it can.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    ends: Sequence[CellEnd] = ()
    rows: pa.Table = field(default_factory=ROUNDS.empty_table)
    clients: pa.Table = field(default_factory=CLIENTS.empty_table)
    models: Mapping[str, bytes] = field(default_factory=dict)
    states: Mapping[str, bytes] = field(default_factory=dict)
    checkpoint: bytes = b""
    saved: Sequence[str] = ()
    running: int = 0
    share: float = 0.0
    round: float = 0.0
    rounds: int = 0
    begun_anew: str = ""
    halve: bool = False
    lost: str = ""

    @property
    def judged_by(self) -> str:
        """The column by which the cells are judged."""
        return judged_by(self.metrics)

    @property
    def value(self) -> float:
        """Its mean over the cells; NaN if none is evaluated."""
        return float(self.metrics.get(self.judged_by, math.nan))

    @property
    def in_brief(self) -> "News":
        """The news without results, once these are written: what the display still shows."""
        return replace(
            self,
            ends=(),
            rows=ROUNDS.empty_table(),
            clients=CLIENTS.empty_table(),
            models={},
            states={},
            checkpoint=b"",
            saved=(),
        )


def judged_by(metrics: Mapping[str, Any]) -> str:
    """Return the column by which a run is judged, from what is reported of it."""
    return next((name for name in metrics if name != "round"), ACCURACY)
