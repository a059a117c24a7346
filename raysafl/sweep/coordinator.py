"""The coordinator: the process of a Tune trial, which carries out one run.

Tune reuses the coordinator's process for the next trial, and the coordinator keeps its
client actors, so a sweep starts its processes once. `_reset` drops all state of the
last run; a test compares a reused trial with a new one.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import ray
import torch
from filelock import FileLock
from ray import tune

from raysafl.core.problem import Dataset
from raysafl.models import FlatModel
from raysafl.runtime import Hardware, OnActors, Worker
from raysafl.runtime.messages import RunSetup
from raysafl.runtime.on_actors import agree_on_engine, should_piggyback, start_actors
from raysafl.runtime.ray_private import is_own_exit
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.locks import RemoteLock
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.store import Store
from raysafl.sweep.code_digest import CodeDigests
from raysafl.sweep.definition import Make, sample_key
from raysafl.sweep.old_code import CHOICES, changes_text, checkpoint_maker
from raysafl.sweep.session import Session
from raysafl.sweep.stale import Stale, StaleCodeError, changed_classes
from raysafl.sweep.user_errors import describe_error, kept_traceback

# Several trials may not take runs out of the compacted files at the same time, so only
# the driver forgets results.
RESULTS_CHOICES = (
    "--stale keep keeps its results, and --no-resume runs everything again"
)

# What is reported before a round is evaluated. Tune ends a sweep with an error if a
# report lacks the metric that its scheduler or search algorithm goes by.
NO_METRICS = {"round": 0, "test_accuracy": float("nan"), "test_loss": float("nan")}


@dataclass(frozen=True)
class Context:
    """What all trials of a sweep share.

    Args:
        store: the sweep's folder.
        make: makes a run from the configuration that Tune gives a trial.
        hardware: what a trial runs on.
        datasets: the loaded datasets in Ray's object store, by the `source_key` of the
            data that load them.
        origin: versions, host and commit, for the ledger entries.
        code: digests of the user's classes that the driver has computed.
        stale: what becomes of a run whose code has changed.
        report_seconds: the time between two reports to Tune; 0 reports every evaluated
            round.
        flush_seconds: the time between two checkpoints.
        engine: the engine that computes gradients.
    """

    store: Location
    make: Make
    hardware: Hardware
    datasets: dict[str, "ray.ObjectRef[Dataset]"]
    origin: dict[str, str]
    report_seconds: float
    flush_seconds: float
    engine: str = "auto"
    code: Mapping[str, str] = field(default_factory=dict)
    stale: Stale = Stale.FAIL


class Coordinator(tune.Trainable):
    """Coordinates one run after the other on the same client actors.

    A run that raises an error, or whose client actors are lost again and again, is
    recorded as failed with the reason; for Tune the trial ends normally. Only the loss
    of the coordinator's own process is an error of the trial. Tune then starts it
    again, and the run goes on from its checkpoint.
    """

    def setup(self, config: dict[str, Any], context: Context | None = None) -> None:
        """Start the client actors.

        The run is begun later, in `step`: Tune may set up one coordinator for a trial
        and then give the trial to another, and only one of them may touch the rows of
        the run.
        """
        assert context is not None
        torch.set_num_threads(1)
        self.context = context
        self.store = Store(context.store)
        self.digests = CodeDigests(context.code)
        self.actors = start_actors(context.hardware)
        self._reset(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Get ready for the next run on the same client actors."""
        self._stop()
        self._reset(new_config)
        return True

    def _reset(self, config: dict[str, Any]) -> None:
        """Drop all state of the last run."""
        self.session: Session | None = None
        self.run: Run | None = None
        self.run_lock: FileLock | RemoteLock | None = None
        self.begun = False
        self.key = str(config.get("run", "")) or sample_key(config)

    def _begin(self) -> None:
        """Get the run ready, unless an earlier trial has ended it.

        It waits for another trial of the same run to end: two sampled configurations
        may give equal runs, and the trials of a killed driver live on for a moment.
        """
        self.begun = True
        self.run = self.context.make(self.config)
        self.key = self.run.id
        self.run_lock = self.store.run_lock(self.key)
        self.run_lock.acquire()
        code = self.digests.of_run(self.run)
        # A trial that waited for another one finds the run finished.
        if not self._ended_before(code):
            self.session = self._open(self.run, code)

    def _ended_before(self, code: Mapping[str, str]) -> bool:
        """Whether the run has ended; a checkpoint of other code is deleted.

        Raises:
            StaleCodeError: other code has made the results or the checkpoint, and the
                user has not said what becomes of them. The driver raises this error
                before anything runs, but it does not know all runs that are sampled.
        """
        entry = self.store.ledger_entry(self.key)
        if entry is not None and entry.status.decided:
            changed = changed_classes(entry.code, code)
            if changed and self.context.stale is not Stale.KEEP:
                self._refuse(changed, RESULTS_CHOICES)
            return True
        changed = changed_classes(checkpoint_maker(self.store, self.key).code, code)
        if changed and self.context.stale is Stale.FAIL:
            self._refuse(changed, CHOICES)
        if changed:
            self.store.checkpoint(self.key).unlink(missing_ok=True)
        return False

    def _refuse(self, changed: list[str], choices: str) -> None:
        text = changes_text({self.key: changed}, {self.key: self.config})
        raise StaleCodeError(f"{text}. {choices}")

    def _open(self, run: Run, code: Mapping[str, str]) -> Session:
        ref = self.context.datasets.get(run.data.source_key) or ray.put(run.data.load())
        dataset = ray.get(ref)
        flat = FlatModel(run.model, dataset.train.x.shape[1:], dataset.num_classes)
        setup = RunSetup(
            data=run.data,
            dataset=ref,
            model=run.model,
            seeds=run.seeds,
            engine=self.context.engine,
            batch_size=run.local.batch_size,
            frozen=ray.put(flat.frozen),
        )
        self.actors.configure(setup)
        # It trains nothing here, so any engine will do, and none need be measured.
        reference = Worker(run.data, dataset, run.model, run.seeds, engine="loop")
        device, engine = agree_on_engine(self.actors, setup)
        origin = {**self.context.origin, "device": device, "engine": engine}
        work = OnActors(self.actors, reference, should_piggyback(engine))
        flush_seconds = self.context.flush_seconds
        return Session(run, self.store, work, origin, flush_seconds, code)

    def step(self) -> dict[str, Any]:
        """Run rounds for `report_seconds` and report the last evaluated round.

        If results cannot be written, the run is not recorded as failed. The reason is
        reported as `lost`, the driver ends the sweep, and the run goes on from its
        checkpoint when the sweep is started again.
        """
        try:
            return self._step()
        except StorageError as error:
            self._close()
            return {"run_id": self.key, "done": True, "lost": str(error), **NO_METRICS}

    def _step(self) -> dict[str, Any]:
        result: dict[str, Any] = {"done": True, **NO_METRICS}
        try:
            if not self.begun:
                self._begin()
            if self.session is None:
                entry = self.store.ledger_entry(self.key)
                result |= entry.metrics if entry else {}
            else:
                result["done"] = self.session.advance(self.context.report_seconds)
                result |= self.session.metrics() | {"writes": self.session.writes}
                # A warning that is raised here would end in a file of Ray's.
                result["begun_anew"] = self.session.begun_anew
                # For the ledger entry, should a scheduler stop the run here.
                result["rows"] = [asdict(own) for own in self.session.sums]
        except StorageError:
            raise
        # The user's own code may call `sys.exit`, which would end this process.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            if is_own_exit(error):
                raise
            self._fail(error)
        if result["done"]:
            self._close()
        return {"run_id": self.key, **result}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return an empty checkpoint for Tune, as `Session` writes the run's own one."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Ignore Tune's checkpoint: `Session` goes on from the run's own one."""

    def _fail(self, error: BaseException) -> None:
        """Record the failure with the user's line that raised it, and the rows before it."""
        components = list(self.run.components()) if self.run else []
        entry = LedgerEntry.now(
            self.run.model_dump(mode="json") if self.run else None,
            Status.FAILED,
            describe_error(error, components),
            traceback=kept_traceback(error),
            **self.context.origin,
        )
        self.store.write_ledger(self.key, entry)
        if self.session is not None:
            # The evaluation under way may fail as well.
            with suppress(Exception):
                self.session.write_rows()
        self._close()

    def _stop(self) -> None:
        try:
            # A storage error ends the sweep anyway, and the last checkpoint stays.
            with suppress(StorageError):
                if self.session is not None:
                    self.session.flush()
        finally:
            self._close()

    def _close(self) -> None:
        """Release the run, so that another trial may run it."""
        self.session = None
        if self.run_lock is not None:
            self.run_lock.release()

    def cleanup(self) -> None:
        """Write what an early stop leaves of the run, and end the client actors."""
        try:
            self._stop()
        finally:
            self.actors.kill()
