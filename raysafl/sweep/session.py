"""Carries out the cells of a pack in lock-step, and says what becomes of them.

Nothing is written here. What has ended since the last report is part of the news
(`raysafl.sweep.news`), and so is, every `flush_seconds`, a checkpoint of what goes on, more
seldom if checkpoints are so large that they take long.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysafl.core.record import COLUMNS, Record
from raysafl.core.work import Work
from raysafl.simulation.checkpoint import dump, load, save
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Lockstep
from raysafl.storage.checkpoint import Checkpoint, farthest
from raysafl.storage.ledger import CellEnd, Status
from raysafl.storage.rows import (
    CLIENTS,
    ROUNDS,
    joined,
    of_cells,
    table_of,
    without_cells,
)
from raysafl.sweep.choices import FLUSH_SECONDS
from raysafl.sweep.code import changed_classes
from raysafl.sweep.news import News
from raysafl.sweep.open_cell import (
    OpenCell,
    client_rows,
    digest_of_model,
    metrics_of,
)
from raysafl.sweep.user_errors import describe_error, kept_traceback

# If a pack's checkpoints take longer than this to make, as they have gigabytes, they are
# made as many times more seldom, so that they take a twentieth of the time.
QUICK_SECONDS = FLUSH_SECONDS / 20
# They are at most so many times more seldom, since a machine may be slow for once.
MOST_SELDOM = 10


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal, and not the user's own code, raised an error."""
    return isinstance(error, KeyboardInterrupt)


class Session:
    """Carries out cells in lock-step, each from its checkpoint.

    A cell that raises an error has failed, and the others go on. A checkpoint that is of
    other code is not used: the cell then begins anew, and `begun_anew` says why.

    Args:
        runs: the cells, as runs of one seed each, in their order in `work`.
        work: trains and evaluates, in this process or on actors.
        origin: versions, host, device, engine and so on, for the ledger.
        code: for each cell, by its id, a digest of each of the user's own classes.
        checkpoints: from where cells go on.
        flush_seconds: the time between two checkpoints that are quick to make; 0 makes one
            for each report.
        ends_process: whether an error is meant to end this process, and is no failure
            of a cell; by default a KeyboardInterrupt is.
        keep_states: whether the states are kept in which cells end.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        work: Work,
        origin: Mapping[str, str],
        code: Mapping[str, Mapping[str, str]] | None = None,
        checkpoints: Sequence[Checkpoint] = (),
        flush_seconds: float = FLUSH_SECONDS,
        ends_process: Callable[[BaseException], bool] = is_interrupt,
        keep_states: bool = False,
    ) -> None:
        self.keep_states = keep_states
        self.origin = dict(origin)
        self.flush_seconds = flush_seconds
        # The time until the next checkpoint.
        self._pause = flush_seconds
        self.ends_process = ends_process
        self.lockstep = Lockstep[str](work)
        # The cells, and those of them that have not ended, by id.
        codes = code or {}
        self.cells = {
            run.id: OpenCell(run, work, number, codes.get(run.id, {}))
            for number, run in enumerate(runs)
        }
        self.open = dict(self.cells)
        # Cells all of whose rounds were run, and how others have ended, that nobody has
        # been told of.
        self._complete: dict[str, OpenCell] = {}
        self._failed: dict[str, CellEnd] = {}
        # The rows of the cells that nobody has been told of, up to the last report; and the
        # records since then, with the cell of each.
        self._table = ROUNDS.empty_table()
        self._fresh: list[tuple[str, Record]] = []
        # Why checkpoints were not used, a line for each, that nobody has been told of.
        self.begun_anew = ""
        for checkpoint, cells in zip(checkpoints, farthest(checkpoints), strict=True):
            self._go_on(checkpoint, self.open.keys() & cells)
        self._flushed = time.monotonic()
        for cell in self.cells:
            self._end_if_complete(cell)

    def _go_on(self, checkpoint: Checkpoint, here: Set[str]) -> None:
        """Let some cells go on from a checkpoint."""
        told = []
        used = []
        try:
            saved = load(checkpoint.state, here)
        except ValueError as error:
            saved = {}
            told.append(f"{error}, so {len(here)} cells begin anew")
        last = _last_records(of_cells(checkpoint.rows, here))
        for cell in saved:
            far = checkpoint.cells[cell]
            changed = changed_classes(far.code, self.open[cell].code)
            why = (
                f"the code of {', '.join(changed)} has changed since" if changed else ""
            )
            if not why:
                try:
                    self.open[cell].go_on(saved[cell], far, last.get(cell))
                    used.append(cell)
                except ValueError as error:
                    why = str(error)
            if why:
                told.append(f"cell {cell}: {why}, so it begins anew")
        self._table = joined([self._table, of_cells(checkpoint.rows, used)])
        self.begun_anew = "\n".join(filter(None, [self.begun_anew, *told]))

    @property
    def share(self) -> float:
        """The part of the rounds of all cells that have been run, from 0 to 1."""
        parts = [
            own.simulation.rounds_over / own.run.rounds for own in self.open.values()
        ]
        return (len(self.cells) - len(parts) + sum(parts)) / len(self.cells)

    def advance(self, seconds: float) -> bool:
        """Run rounds for some time, and then up to the next round that is evaluated.

        Args:
            seconds: how long; 0 ends at the first evaluated round.

        Returns:
            Whether all cells have ended.
        """
        begin = time.monotonic()
        while self.open:
            evaluated = self._advance()
            if evaluated and time.monotonic() - begin >= seconds:
                break
        return not self.open

    def _advance(self) -> bool:
        """Run a round of every open cell; return whether one of them was evaluated."""
        simulations = {cell: own.simulation for cell, own in self.open.items()}
        outcomes = self.lockstep.advance(simulations)
        evaluated = False
        for cell, outcome in outcomes.items():
            own = self.open[cell]
            if isinstance(outcome, BaseException):
                if self.ends_process(outcome):
                    raise outcome
                self._fail(own, outcome)
                continue
            own.take(outcome)
            self._fresh += [(cell, record) for record in outcome]
            evaluated = evaluated or bool(outcome)
            self._end_if_complete(cell)
        return evaluated

    def _end_if_complete(self, cell: str) -> None:
        """Put a cell aside if all of its rounds have been run."""
        if self.open[cell].simulation.done:
            self._complete[cell] = self.open.pop(cell)

    def _fail(self, own: OpenCell, error: BaseException) -> None:
        """Note how a cell has failed."""
        del self.open[own.id]
        self._failed[own.id] = failure(error, own.id, own.about(self.origin))
        # A search algorithm must not take its last accuracy for a result.
        own.latest = None

    def news(self, at_once: bool = False) -> News:
        """Return what has become of the cells since the last call.

        Args:
            at_once: whether a checkpoint is made in any case.
        """
        is_due = at_once or time.monotonic() - self._flushed >= self._pause
        checkpoint = self._checkpoint() if is_due and self.open else b""
        rows = self._rows()
        over = {**self._complete, **{cell: self.cells[cell] for cell in self._failed}}
        models = {cell: own.model() for cell, own in self._complete.items()}
        # Why the pack's requests had to be divided, if they had.
        note = self.lockstep.most_reason
        origin = self.origin | ({"divided": note} if note else {})
        ends = [
            own.end(origin | digest_of_model(models[cell]))
            for cell, own in self._complete.items()
        ]
        states = {}
        for cell, own in self._complete.items() if self.keep_states else ():
            nothing = ROUNDS.empty_table(), CLIENTS.empty_table()
            state = dump({cell: save(own.replicate)})
            states[cell] = Checkpoint({cell: own.how_far()}, *nothing, state).to_bytes()
        found = News(
            metrics=self.metrics(),
            done=not self.open,
            ends=[*ends, *self._failed.values()],
            rows=of_cells(rows, over),
            clients=_clients_of(over),
            models={cell: content for cell, content in models.items() if content},
            states=states,
            checkpoint=checkpoint,
            saved=list(self.open) if checkpoint else (),
            running=len(self.open),
            share=self.share,
            round=sum(own.simulation.rounds_over for own in self.open.values())
            / max(1, len(self.open)),
            rounds=max((own.run.rounds for own in self.open.values()), default=0),
            begun_anew=self.begun_anew,
        )
        self._table = without_cells(rows, over) if over else rows
        self._complete = {}
        self._failed = {}
        self.begun_anew = ""
        return found

    def _rows(self) -> pa.Table:
        """Return all rows of the cells that nobody has been told of."""
        if self._fresh:
            cells, records = zip(*self._fresh, strict=True)
            self._table = joined([self._table, table_of(cells, records)])
            self._fresh = []
        return self._table

    def _checkpoint(self) -> bytes:
        """Return where the cells are that go on."""
        began = time.monotonic()
        content = Checkpoint(
            {cell: own.how_far() for cell, own in self.open.items()},
            of_cells(self._rows(), self.open),
            _clients_of(self.open),
            dump({cell: save(own.replicate) for cell, own in self.open.items()}),
        ).to_bytes()
        self._flushed = time.monotonic()
        times = min((self._flushed - began) / QUICK_SECONDS, MOST_SELDOM)
        slow = times * min(self.flush_seconds, FLUSH_SECONDS)
        self._pause = max(self.flush_seconds, slow)
        return content

    def metrics(self) -> dict[str, float | int]:
        """Return the last evaluated round, in the mean over cells, see `metrics_of`."""
        first = next(iter(self.cells.values()))
        last = [own.latest for own in self.cells.values() if own.latest is not None]
        return metrics_of(first.run, last)


def mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of what was reported of several cells, NaN where one has none."""
    names = dict.fromkeys(name for own in metrics for name in own)
    means = {
        n: float(np.mean([own.get(n, math.nan) for own in metrics])) for n in names
    }
    rounds = max((own.get("round", 0) for own in metrics), default=0)
    return {**means, "round": rounds}


def _clients_of(cells: Mapping[str, OpenCell]) -> pa.Table:
    """Return the rows of cells in the table of clients."""
    tables = (client_rows(cell, own.replicate) for cell, own in cells.items())
    return joined((table for table in tables if table is not None), "clients")


def _last_records(rows: pa.Table) -> dict[str, Record]:
    """Return the record of the last row of each cell."""
    order = pc.sort_indices(
        rows, [("cell", "ascending"), ("round", "ascending")]
    ).to_numpy()
    cells = rows["cell"].to_numpy()[order]
    is_last = np.append(cells[1:] != cells[:-1], True)[: len(cells)]
    last = rows.take(pa.array(order[is_last])).to_pylist()
    return {row.pop("cell"): _record_of(row) for row in last}


def _record_of(row: dict[str, Any]) -> Record:
    """Return a row as the record that it was made of."""
    fields = {name: row.pop(name) for name in COLUMNS}
    metrics = {name: value for name, value in row.items() if value is not None}
    return Record(replicate=0, **fields, metrics=metrics)


def failure(error: BaseException, cell: str, about: Mapping[str, Any]) -> CellEnd:
    """Return the ledger entry of a failed cell, with the user's line that raised the error.

    Args:
        error: the error.
        cell: its id, or a name for a run that could not be made.
        about: versions, host, the time that it took, and so on.
    """
    return CellEnd.now(
        cell,
        Status.FAILED,
        describe_error(error),
        traceback=kept_traceback(error),
        **about,
    )
