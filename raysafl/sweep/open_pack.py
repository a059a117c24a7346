"""A pack that has begun and not ended, wherever it is carried out.

Both executors carry out packs by this class: `here` in the command's own process, and
`ray` in the process of each trial. They differ in what hosts the clients, and in whom
they tell the news.
"""

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from filelock import FileLock

from raysafl.cluster.provenance import provenance
from raysafl.core.work import Work
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.locks import RemoteLock
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.statistics import ACCURACY
from raysafl.storage.store import Store
from raysafl.sweep.choices import FLUSH_SECONDS
from raysafl.sweep.packs import Pack
from raysafl.sweep.session import End, Session, failure, judged_by

if TYPE_CHECKING:
    from raysafl.sweep.driver import Driver


class Hosted(NamedTuple):
    """A machine that hosts the cells of some runs.

    Args:
        work: trains and evaluates.
        device: the name of the device that it uses.
        engine: the engine that computes gradients.
    """

    work: Work
    device: str
    engine: str


# Lets a machine host the cells of runs with one dataset, model and objective.
Host: TypeAlias = Callable[[Sequence[Run]], Hosted]


@dataclass(frozen=True)
class News:
    """What has become of the runs of a pack since its last report.

    Args:
        metrics: the last evaluated round of the run that a scheduler, a search
            algorithm or a rule to stop goes by; NaN where there is none.
        done: whether the pack needs no further attempt here.
        ends: how runs have ended.
        written: the open runs that have new rows, and those that have failed.
        running: how many runs are open.
        share: the part of the pack's rounds that have been run, from 0 to 1.
        round: the number of rounds that the open runs have run, in the mean.
        rounds: how many rounds the longest of them is to have.
        judged_by: the column by which they are judged.
        value: its mean over the open runs; NaN if none is evaluated.
        begun_anew: why checkpoints were not used, a line for each.
        halve: whether the driver is to try the halves of the pack.
        lost: why results cannot be written any more; empty if they can.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False
    ends: Sequence[End] = ()
    written: Sequence[str] = ()
    running: int = 0
    share: float = 0.0
    round: float = 0.0
    rounds: int = 0
    judged_by: str = ACCURACY
    value: float = math.nan
    begun_anew: str = ""
    halve: bool = False
    lost: str = ""


@dataclass(frozen=True)
class Terms:
    """What holds for all packs of a sweep.

    Args:
        store: the sweep's folder.
        commit: the git commit of the folder in which the sweep was started.
        report_seconds: the time between two reports; 0 reports every evaluated round.
        flush_seconds: the time between two checkpoints that are quick to write.
        engine: the engine that computes gradients.
        metric: what the scheduler and the search algorithm go by.
        keep_states: whether the states are kept in which runs end.
        driver: who started the sweep, if machines of a cluster carry it out.
    """

    store: Location
    commit: str
    report_seconds: float
    flush_seconds: float = FLUSH_SECONDS
    engine: str = "auto"
    metric: str = ACCURACY
    keep_states: bool = False
    driver: "Driver | None" = None

    @property
    def no_metrics(self) -> dict[str, Any]:
        """What is reported before a round is evaluated.

        Tune ends a sweep with an error if a report lacks the metric that its scheduler
        or search algorithm goes by.
        """
        return {"round": 0, self.metric: math.nan, "test_loss": math.nan}


class OpenPack:
    """Carries out the runs of a pack that have not ended, and tells what becomes of them.

    A run that raises an error is recorded as failed with the reason, and the other runs
    go on. If an error concerns several runs as a whole, the news ask for the halves of
    the pack. If results cannot be written, no run is recorded as failed: the reason is
    in the news, and the runs go on from their checkpoints in a later attempt.

    Nothing is touched before the first `advance`.

    Args:
        pack: the pack.
        code: for each run, by its id, a digest of each of the user's own classes.
        terms: what holds for all packs of the sweep.
        host: lets a machine host the cells of the runs.
        ends_process: whether an error is meant to end this process, and is no failure
            of a run.
    """

    def __init__(
        self,
        pack: Pack,
        code: Mapping[str, Mapping[str, str]],
        terms: Terms,
        host: Host,
        ends_process: Callable[[BaseException], bool],
    ) -> None:
        self.pack = pack
        self.code = code
        self.terms = terms
        self.host = host
        self.ends_process = ends_process
        # Of the process that carries out the pack, which may be on another machine.
        self.origin = {**provenance(), "commit": terms.commit}
        self.store = Store(terms.store)
        self.session: Session | None = None
        self._lock: FileLock | RemoteLock | None = None
        self._begun = False
        # The entries of runs that an earlier attempt has ended.
        self._ended: dict[str, LedgerEntry] = {}

    def advance(self, halted: Callable[[], bool] = lambda: False) -> News:
        """Run rounds until a report is due, and then up to the next evaluated one.

        Args:
            halted: is asked after every round whether to return at once.
        """
        try:
            return self._advance(halted)
        except StorageError as error:
            self._close()
            return News(self.terms.no_metrics, done=True, lost=str(error))

    def _advance(self, halted: Callable[[], bool]) -> News:
        try:
            if not self._begun:
                self._begin()
            if self.session is None:
                news = self._news_of_ended()
            else:
                done = self.session.advance(self.terms.report_seconds, halted)
                news = self._news(self.session, done)
        except StorageError:
            raise
        # The user's own code may call `sys.exit`, which would end this process.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if self.ends_process(error):
                # In the middle of a round there is no state from which to go on.
                self._close()
                raise
            news = self._fail(error)
        if news.done:
            self._close()
        return news

    def _begin(self) -> None:
        """Get the runs ready that no earlier attempt has ended.

        It waits for another attempt at the same pack to end, because a search algorithm
        may ask for the same run twice.
        """
        self._begun = True
        if self.terms.driver is not None:
            self.terms.driver.check()
        self._lock = self.store.run_lock(self.pack.id)
        self._lock.acquire()
        self._ended = self.store.decided({run.id for run in self.pack.runs})
        runs = [run for run in self.pack.runs if run.id not in self._ended]
        if not runs:
            return
        work, device, engine = self.host(runs)
        self.session = Session(
            runs,
            self.store,
            work,
            {**self.origin, "device": device, "engine": engine},
            self.terms.flush_seconds,
            self.code,
            self.ends_process,
            self.terms.keep_states,
        )
        # Some 300,000 objects of imported modules outlive the pack, as most of its own do
        # that are there now. The garbage collector would look at them every few rounds of
        # a large pack, which takes longer than a round.
        gc.freeze()

    def _news_of_ended(self) -> News:
        """Return the news of a pack all of whose runs had ended before."""
        metrics = self.terms.no_metrics
        if len(self._ended) == 1:
            metrics |= next(iter(self._ended.values())).metrics
        ends = [End.of(run_id, entry) for run_id, entry in self._ended.items()]
        return News(metrics, done=True, ends=ends)

    def _news(self, session: Session, done: bool) -> News:
        """Return how far the runs of a session are."""
        ends = [End.of(run_id, entry) for run_id, entry in self._ended.items()]
        self._ended = {}
        metrics = session.metrics()
        return News(
            metrics=metrics,
            done=done,
            ends=[*ends, *session.take_ends()],
            written=session.take_written(),
            running=len(session.open),
            share=session.share,
            round=session.mean_round,
            rounds=max((own.run.rounds for own in session.open.values()), default=0),
            judged_by=judged_by(metrics),
            value=session.quality(),
            begun_anew=session.begun_anew,
        )

    def _fail(self, error: BaseException) -> News:
        """Record the failure of a run, or ask for the halves of a pack."""
        self._close()
        nothing = self.terms.no_metrics
        if len(self.pack.runs) > 1:
            return News(nothing, done=True, halve=True)
        (run,) = self.pack.runs
        entry = failure(error, run, self.origin)
        self.store.commit_end(run.id, entry)
        return News(nothing, done=True, ends=[End.of(run.id, entry)])

    def stop(self) -> None:
        """Write where the runs are that have not ended, and release the pack."""
        try:
            # A storage error ends the sweep anyway, and the last checkpoints stay.
            with suppress(StorageError):
                if self.session is not None:
                    self.session.flush()
        finally:
            self._close()

    def _close(self) -> None:
        """Release the runs, so that another attempt may carry them out."""
        self.session = None
        gc.unfreeze()
        if self._lock is not None:
            self._lock.release()
