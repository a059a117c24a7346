"""What the driver and whoever carries out a pack tell each other.

The driver gives a pack, and is told what becomes of its cells. It alone writes results.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from raysafl.storage.ledger import CellEnd, Checkpoint
from raysafl.storage.rows import CLIENTS, ROUNDS
from raysafl.storage.statistics import ACCURACY
from raysafl.sweep.choices import FLUSH_SECONDS
from raysafl.sweep.packs import Pack


@dataclass(frozen=True)
class Terms:
    """What holds for all packs of a sweep.

    Args:
        commit: the git commit of the folder in which the sweep was started.
        package: the digest of the raysafl that started it, if machines of a cluster carry it
            out: all must have the same.
        report_seconds: the time between two reports; 0 reports every evaluated round, each
            with a checkpoint.
        flush_seconds: the time between two checkpoints that are quick to make.
        engine: the engine that computes gradients.
        metric: what the scheduler and the search algorithm go by.
        keep_states: whether the states are kept in which cells end.
    """

    commit: str
    package: str
    report_seconds: float
    flush_seconds: float = FLUSH_SECONDS
    engine: str = "auto"
    metric: str = ACCURACY
    keep_states: bool = False

    @property
    def no_metrics(self) -> dict[str, Any]:
        """What is reported before a round is evaluated.

        Tune ends a sweep with an error if a report lacks the metric that its scheduler
        or search algorithm goes by.
        """
        return {"round": 0, self.metric: math.nan, "test_loss": math.nan}


@dataclass(frozen=True)
class GivenPack:
    """What whoever carries out a pack is given.

    Args:
        pack: the pack.
        code: for each cell, by its id, a digest of each of the user's own classes.
        checkpoints: from where cells go on.
    """

    pack: Pack
    code: Mapping[str, Mapping[str, str]]
    checkpoints: Sequence[Checkpoint] = ()


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
        )


def judged_by(metrics: Mapping[str, Any]) -> str:
    """Return the column by which a run is judged, from what is reported of it."""
    return next((name for name in metrics if name != "round"), ACCURACY)
