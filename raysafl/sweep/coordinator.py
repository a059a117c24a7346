"""The coordinator: the process of a Tune trial, which carries out the runs of a pack.

Tune reuses the coordinator's process for the next trial, and the coordinator keeps its
client actors, so a sweep starts its processes once. `_reset` drops all state of the
last pack; a test compares a reused trial with a new one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import ray
import torch
from filelock import FileLock
from ray import tune
from ray.tune.result import TIMESTEPS_TOTAL

from raysafl.core.held import hold_elsewhere
from raysafl.core.problem import Dataset
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.messages import PackSetup
from raysafl.runtime.on_actors import host_pack, start_actors
from raysafl.runtime.ray_private import is_own_exit
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.locks import RemoteLock
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.statistics import ACCURACY
from raysafl.storage.store import Store
from raysafl.sweep.code_digest import CodeDigests
from raysafl.sweep.definition import sample_key
from raysafl.sweep.old_code import sampled_run_has_ended
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.session import End, Session, failure, judged_by
from raysafl.sweep.stale import Stale

# The field of a report that is for the driver alone (`News`). It is neither a number nor
# a list, so that loggers of Tune's pass over it.
NEWS = "raysafl"

# From the configuration that Tune gives a trial to the trial's pack.
PackOf: TypeAlias = Callable[[dict[str, Any]], Pack]


@dataclass(frozen=True)
class News:
    """What has become of the runs of a trial since its last report.

    Args:
        ends: how runs have ended.
        written: the runs that have not ended and have new rows.
        running: how many runs are open.
        judged_by: the column by which they are judged.
        value: its mean over the open runs; NaN if none is evaluated.
        rows: the sums of the rows of the one run that a scheduler may stop; empty if
            the pack has several runs.
        begun_anew: why checkpoints were not used, a line for each.
        halve: whether the driver is to try the halves of the pack.
        lost: why results cannot be written any more; empty if they can.
    """

    ends: Sequence[End] = ()
    written: Sequence[str] = ()
    running: int = 0
    judged_by: str = ACCURACY
    value: float = math.nan
    rows: Sequence[dict[str, Any]] = ()
    begun_anew: str = ""
    halve: bool = False
    lost: str = ""


@dataclass(frozen=True)
class Context:
    """What all trials of a sweep share.

    Args:
        store: the sweep's folder.
        pack_of: returns the pack of the configuration that Tune gives a trial. Where
            Tune samples, it makes the run, which may raise an error of the user's.
        hardware: what a trial runs on.
        datasets: the loaded datasets in Ray's object store, by the `source_key` of the
            data that load them.
        origin: versions, host and commit, for the ledger entries.
        code: digests of the user's classes that the driver has computed.
        stale: what becomes of a run whose code has changed.
        held: datasets that exist in the memory of the driver only, in Ray's object
            store, by the digests of their contents.
        metric: what the scheduler and the search algorithm go by.
        report_seconds: the time between two reports to Tune; 0 reports every evaluated
            round.
        flush_seconds: the time between two checkpoints.
        engine: the engine that computes gradients.
    """

    store: Location
    pack_of: PackOf
    hardware: Hardware
    datasets: "dict[str, ray.ObjectRef[Dataset]]"
    origin: dict[str, str]
    report_seconds: float
    flush_seconds: float
    engine: str = "auto"
    code: Mapping[str, str] = field(default_factory=dict)
    stale: Stale = Stale.FAIL
    metric: str = ACCURACY
    held: "Mapping[str, ray.ObjectRef[Dataset]]" = field(default_factory=dict)

    @property
    def no_metrics(self) -> dict[str, Any]:
        """What is reported before a round is evaluated.

        Tune ends a sweep with an error if a report lacks the metric that its scheduler
        or search algorithm goes by.
        """
        return {"round": 0, self.metric: math.nan, "test_loss": math.nan}


def _fetch(reference: "ray.ObjectRef[Dataset]") -> Dataset:
    """Return a dataset that is in Ray's object store; its arrays are not copied."""
    return ray.get(reference)


class Coordinator(tune.Trainable):
    """Coordinates one pack after the other on the same client actors.

    A run that raises an error is recorded as failed with the reason, and the other runs
    of its pack go on; for Tune the trial ends normally. If an error concerns a pack of
    several runs as a whole, the driver is told to try its halves. Only the loss of the
    coordinator's own process is an error of the trial. Tune then starts it again, and
    the runs go on from their checkpoints.
    """

    def setup(self, config: dict[str, Any], context: Context | None = None) -> None:
        """Start the client actors.

        The runs are begun later, in `step`: Tune may set up one coordinator for a trial
        and then give the trial to another, and only one of them may touch the rows of
        the runs.
        """
        assert context is not None
        torch.set_num_threads(1)
        self.context = context
        for content, reference in context.held.items():
            hold_elsewhere(content, partial(_fetch, reference))
        self.store = Store(context.store)
        self.digests = CodeDigests(context.code)
        self.actors = start_actors(context.hardware)
        self._reset(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Get ready for the next pack on the same client actors."""
        self._stop()
        self._reset(new_config)
        return True

    def _reset(self, config: dict[str, Any]) -> None:
        """Drop all state of the last pack."""
        self.session: Session | None = None
        self.pack = Pack(())
        self.lock: FileLock | RemoteLock | None = None
        self.begun = False
        # Names the pack, or the sampled configuration of which no run could be made.
        self.key = str(config.get(PACK_KEY, "")) or sample_key(config)
        # The entries of runs that an earlier trial has ended.
        self.ended: dict[str, LedgerEntry] = {}

    def _begin(self) -> None:
        """Get the runs ready that no earlier trial has ended.

        It waits for another trial of the same pack to end, because two sampled
        configurations may give equal runs.
        """
        self.begun = True
        self.pack = self.context.pack_of(self.config)
        self.key = self.pack.id
        self.lock = self.store.run_lock(self.key)
        self.lock.acquire()
        code = {run.id: self.digests.of_run(run) for run in self.pack.runs}
        self.ended = self._ended_before(code)
        runs = [run for run in self.pack.runs if run.id not in self.ended]
        if runs:
            self.session = self._open(runs, code)

    def _ended_before(
        self, code: Mapping[str, Mapping[str, str]]
    ) -> dict[str, LedgerEntry]:
        """Return the entries of runs that an earlier trial has ended.

        Raises:
            StaleCodeError: see `sampled_run_has_ended`.
        """
        if PACK_KEY in self.config:
            return self.store.ended_in(self.pack.id)
        (run,) = self.pack.runs
        entry = self.store.ledger_entry(run.id)
        ended = sampled_run_has_ended(
            self.store, run.id, entry, code[run.id], self.context.stale, self.config
        )
        return {run.id: entry} if ended and entry else {}

    def _open(
        self, runs: Sequence[Run], code: Mapping[str, Mapping[str, str]]
    ) -> Session:
        first = runs[0]
        dataset = self.context.datasets.get(first.data.source_key)
        setup = PackSetup(
            cells=[cell for run in runs for cell in run.cells],
            dataset=dataset or ray.put(first.data.load()),
            model=first.model,
            engine=self.context.engine,
            batch_size=first.local.batch_size,
            objective=first.objective,
        )
        work, device, engine = host_pack(self.actors, setup)
        return Session(
            runs,
            self.store,
            work,
            {**self.context.origin, "device": device, "engine": engine},
            self.context.flush_seconds,
            code,
            self.pack.id,
        )

    def step(self) -> dict[str, Any]:
        """Run rounds for `report_seconds` and report what has become of the runs.

        If results cannot be written, no run is recorded as failed. The reason is
        reported as `lost`, the driver ends the sweep, and the runs go on from their
        checkpoints when the sweep is started again.
        """
        try:
            return self._step()
        except StorageError as error:
            self._close()
            nothing = self.context.no_metrics
            return {**nothing, "done": True, NEWS: News(lost=str(error))}

    def _step(self) -> dict[str, Any]:
        """Return a report: metrics of the run that a scheduler watches, and `News`."""
        metrics: dict[str, Any] = dict(self.context.no_metrics)
        news = News()
        done = True
        try:
            if not self.begun:
                self._begin()
                news = News(ends=[End.of(i, entry) for i, entry in self.ended.items()])
            if self.session is not None:
                done = self.session.advance(self.context.report_seconds)
                metrics = self.session.metrics()
                news = self._news(self.session)
            elif len(self.ended) == 1:
                metrics |= next(iter(self.ended.values())).metrics
        except StorageError:
            raise
        # The user's own code may call `sys.exit`, which would end this process.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if is_own_exit(error):
                raise
            news = self._fail(error)
            done = True
        if done:
            self._close()
        # TensorBoard draws curves over Tune's number of time steps.
        return {**metrics, TIMESTEPS_TOTAL: metrics["round"], "done": done, NEWS: news}

    def _news(self, session: Session) -> News:
        """Return how far the runs of a session are."""
        ends = [End.of(run_id, entry) for run_id, entry in self.ended.items()]
        self.ended = {}
        one = len(self.pack.runs) == 1
        return News(
            ends=[*ends, *session.take_ends()],
            written=session.take_written(),
            running=len(session.open),
            judged_by=judged_by(session.metrics()),
            value=session.quality(),
            # A warning that is raised here would end in a file of Ray's.
            begun_anew=session.begun_anew,
            # For the ledger entry, should a scheduler stop the run here.
            rows=session.watched_sums() if one else [],
        )

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return an empty checkpoint for Tune, as `Session` writes those of the runs."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Ignore Tune's checkpoint: `Session` goes on from those of the runs."""

    def _fail(self, error: BaseException) -> News:
        """Record the failure of a run, or let the driver try the halves of a pack."""
        self._close()
        if len(self.pack.runs) > 1:
            return News(halve=True)
        run = self.pack.runs[0] if self.pack.runs else None
        run_id = run.id if run else self.key
        entry = failure(error, run, self.context.origin)
        self.store.write_ledger(run_id, entry)
        return News(ends=[End.of(run_id, entry)])

    def _stop(self) -> None:
        try:
            # A storage error ends the sweep anyway, and the last checkpoints stay.
            with suppress(StorageError):
                if self.session is not None:
                    self.session.flush()
        finally:
            self._close()

    def _close(self) -> None:
        """Release the runs, so that another trial may run them."""
        self.session = None
        if self.lock is not None:
            self.lock.release()

    def cleanup(self) -> None:
        """Write what an early stop leaves of the runs, and end the client actors."""
        try:
            self._stop()
        finally:
            self.actors.kill()
