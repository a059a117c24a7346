"""A pack that has begun and not ended, wherever it is carried out.

Both executors carry out packs by this class: `here` in the command's own process, and
`ray` in the process of each trial. They differ in what hosts the clients, and in how their
news come to the driver. Nothing is written here: what has ended since the last report is part
of the news, and so is, every `flush_seconds`, a checkpoint of what goes on, more seldom if
checkpoints are so large that they take long.
"""

import gc
import platform
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from raysafl.cluster.provenance import (
    OtherPackageError,
    check_package,
    package_digest,
    provenance,
)
from raysafl.core.record import COLUMNS, Record
from raysafl.core.work import Work
from raysafl.simulation.checkpoint import dump, load, save
from raysafl.simulation.run import Run
from raysafl.simulation.simulation import Lockstep
from raysafl.storage.ledger import CellEnd, Checkpoint, farthest
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
from raysafl.sweep.news import GivenPack, News, Terms
from raysafl.sweep.open_cell import OpenCell, client_rows, failure, metrics_of

# What trains and evaluates the cells of a pack, the name of its device, and its engine.
Hosted: TypeAlias = tuple[Work, str, str]
# Lets a machine host cells with one dataset, model and objective.
Host: TypeAlias = Callable[[Sequence[Run]], Hosted]
# If a pack's checkpoints take longer than this to make, as they have gigabytes, they are
# made as many times more seldom, so that they take a twentieth of the time.
QUICK_SECONDS = FLUSH_SECONDS / 20
# They are at most so many times more seldom, since a machine may be slow for once.
MOST_SELDOM = 10
# So many seconds pass between two searches for garbage among all objects.
SEARCH_SECONDS = 60.0


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal, and not the user's own code, raised an error."""
    return isinstance(error, KeyboardInterrupt)


class OpenPack:
    """Carries out the cells of a pack in lock-step, and tells what becomes of them.

    Each goes on from its checkpoint. A checkpoint that is of other code is not used: the cell
    then begins anew, and `begun_anew` says why. A cell that raises an error fails with the
    reason, and the others go on. If an error concerns several cells as a whole, the news ask
    for the halves of the pack.

    Nothing is touched before the first `report`.

    Args:
        given: the pack, and from where it goes on.
        terms: what holds for all packs of the sweep.
        host: lets a machine host the cells.
        ends_process: whether an error is meant to end this process, and is no failure
            of a cell; by default a KeyboardInterrupt is.
    """

    # When a process last searched all objects for garbage.
    searched: ClassVar[float] = time.monotonic()

    def __init__(
        self,
        given: GivenPack,
        terms: Terms,
        host: Host,
        ends_process: Callable[[BaseException], bool] = is_interrupt,
    ) -> None:
        self.given = given
        self.terms = terms
        self.host = host
        self.ends_process = ends_process
        self.flush_seconds = terms.flush_seconds if terms.report_seconds else 0.0
        # Of the process that carries out the pack, which may be on another machine.
        self.origin = {**provenance(), "commit": terms.commit}
        # None unless the pack has begun.
        self.lockstep: Lockstep[str] | None = None
        # The cells, and those of them that have not ended, by id.
        self.cells: dict[str, OpenCell] = {}
        self.open: dict[str, OpenCell] = {}
        # How cells have ended since the last report, with the files that they leave.
        self._ends: list[CellEnd] = []
        self._models: dict[str, bytes] = {}
        self._states: dict[str, bytes] = {}
        # The rows of the cells that nobody has been told of, up to the last report; and the
        # records since then, with the cell of each.
        self._table = ROUNDS.empty_table()
        self._fresh: list[tuple[str, Record]] = []
        # Why checkpoints were not used, a line for each, that nobody has been told of.
        self.begun_anew = ""

    def report(self) -> News:
        """Run rounds until a report is due, and then up to the next evaluated one."""
        try:
            if self.lockstep is None:
                self.begin()
            self.advance(self.terms.report_seconds)
            news = self.news()
        except OtherPackageError as error:
            self.close()
            return News(self.terms.no_metrics, done=True, lost=str(error))
        # The user's own code may call `sys.exit`, which would end this process.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.close()
            if self.ends_process(error):
                # In the middle of a round there is no state from which to go on.
                raise
            return self._failed(error)
        if news.done:
            self.close()
        return news

    def begin(self) -> None:
        """Get the cells ready, each where its farthest checkpoint left it."""
        if expected := self.terms.package:
            check_package(platform.node(), package_digest(), expected)
        runs = self.given.pack.runs
        work, device, engine = self.host(runs)
        self.origin |= {"device": device, "engine": engine}
        self.lockstep = Lockstep[str](work)
        self.cells = {
            run.id: OpenCell(run, work, number, self.given.code[run.id])
            for number, run in enumerate(runs)
        }
        self.open = dict(self.cells)
        found = self.given.checkpoints
        for checkpoint, cells in zip(found, farthest(found), strict=True):
            self._go_on(checkpoint, self.open.keys() & cells)
        # When a checkpoint was made last, and the time until the next one.
        self._flushed = time.monotonic()
        self._pause = self.flush_seconds
        for own in self.cells.values():
            if own.simulation.done:
                self._end(own)
        # Some 300,000 objects of imported modules outlive the pack, as most of its own do
        # that are there now. The garbage collector would look at them every few rounds of
        # a large pack, which takes longer than a round.
        gc.freeze()

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
        assert self.lockstep is not None
        simulations = {cell: own.simulation for cell, own in self.open.items()}
        outcomes = self.lockstep.advance(simulations)
        evaluated = False
        for cell, outcome in outcomes.items():
            own = self.open[cell]
            if isinstance(outcome, BaseException):
                if self.ends_process(outcome):
                    raise outcome
                self._end(own, outcome)
                continue
            own.take(outcome)
            self._fresh += [(cell, record) for record in outcome]
            evaluated = evaluated or bool(outcome)
            if own.simulation.done:
                self._end(own)
        return evaluated

    def _end(self, own: OpenCell, error: BaseException | None = None) -> None:
        """Put a cell aside all of whose rounds have been run, or that has failed."""
        assert self.lockstep is not None
        del self.open[own.id]
        if error is not None:
            self._ends.append(own.fail(error, self.origin))
            return
        # Why the pack's requests had to be divided, if they had.
        note = self.lockstep.most_reason
        end, model = own.end(self.origin | ({"divided": note} if note else {}))
        self._ends.append(end)
        if model:
            self._models[own.id] = model
        if self.terms.keep_states:
            nothing = ROUNDS.empty_table(), CLIENTS.empty_table()
            state = dump({own.id: save(own.replicate)})
            saved = Checkpoint({own.id: own.how_far()}, *nothing, state)
            self._states[own.id] = saved.to_bytes()

    def news(self, at_once: bool = False) -> News:
        """Return what has become of the cells since the last call.

        Args:
            at_once: whether a checkpoint is made in any case.
        """
        going_on = self.open.values()
        is_due = at_once or time.monotonic() - self._flushed >= self._pause
        checkpoint = self._checkpoint() if is_due and self.open else b""
        rows = self._rows()
        over = {end.cell: self.cells[end.cell] for end in self._ends}
        latest = [own.latest for own in self.cells.values() if own.latest is not None]
        shares = [own.simulation.rounds_over / own.run.rounds for own in going_on]
        rounds_over = sum(own.simulation.rounds_over for own in going_on)
        found = News(
            metrics=metrics_of(self.given.pack.runs[0], latest),
            done=not self.open,
            ends=self._ends,
            rows=of_cells(rows, over),
            clients=_clients_of(over),
            models=self._models,
            states=self._states,
            checkpoint=checkpoint,
            running=len(self.open),
            share=1 - (len(shares) - sum(shares)) / len(self.cells),
            round=rounds_over / max(1, len(self.open)),
            rounds=max((own.run.rounds for own in going_on), default=0),
            begun_anew=self.begun_anew,
        )
        self._table = without_cells(rows, over) if over else rows
        self._ends = []
        self._models = {}
        self._states = {}
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

    def _failed(self, error: BaseException) -> News:
        """Return the news of a pack that could not be carried out as a whole."""
        nothing = self.terms.no_metrics
        if len(self.given.pack.runs) > 1:
            return News(nothing, done=True, halve=True)
        (run,) = self.given.pack.runs
        about = {**self.origin, "seed": run.seed}
        return News(nothing, done=True, ends=[failure(error, run.id, about)])

    def close(self) -> None:
        """Release the machine."""
        self.lockstep = None
        self.cells = self.open = {}
        gc.unfreeze()
        # Freezing makes Python forget that such a search is due.
        if time.monotonic() - OpenPack.searched > SEARCH_SECONDS:
            gc.collect()
            OpenPack.searched = time.monotonic()


def _clients_of(cells: Mapping[str, OpenCell]) -> pa.Table:
    """Return the rows of cells in the table of clients."""
    tables = (client_rows(cell, own.replicate) for cell, own in cells.items())
    return joined((table for table in tables if table is not None), "clients")


def _last_records(rows: pa.Table) -> dict[str, Record]:
    """Return the record of the last row of each cell."""
    ordered = rows.sort_by("round")
    last = {cell: row for row, cell in enumerate(ordered["cell"].to_pylist())}
    found = ordered.take(pa.array(last.values(), pa.int64())).to_pylist()
    return {row.pop("cell"): _record_of(row) for row in found}


def _record_of(row: dict[str, Any]) -> Record:
    """Return a row as the record that it was made of."""
    fields = {name: row.pop(name) for name in COLUMNS}
    metrics = {name: value for name, value in row.items() if value is not None}
    return Record(replicate=0, **fields, metrics=metrics)
