"""The coordinator: the process of a Tune trial, which carries out one run.

Tune reuses the coordinator's process for the next trial, and the coordinator keeps its
client actors, so a sweep starts its processes once. `_reset` drops all state of the
last run; a test compares a reused trial with a new one.
"""

import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from filelock import FileLock
from ray import tune

from raysafl.core.problem import Dataset
from raysafl.runtime import Hardware, OnActors, Worker
from raysafl.runtime.messages import RunSetup
from raysafl.runtime.on_actors import agree_on_engine, should_piggyback, start_actors
from raysafl.simulation.run import Run
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.locks import RemoteLock
from raysafl.storage.paths import Location, StorageError
from raysafl.storage.store import Store
from raysafl.sweep.definition import Make, sample_key
from raysafl.sweep.session import Session


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
        # A trial that waited for another one finds the run finished.
        if not self._ended_before():
            self.session = self._open(self.run)

    def _ended_before(self) -> bool:
        entry = self.store.ledger_entry(self.key)
        return entry is not None and entry.status.decided

    def _open(self, run: Run) -> Session:
        ref = self.context.datasets.get(run.data.source_key) or ray.put(run.data.load())
        setup = RunSetup(
            data=run.data,
            dataset=ref,
            model=run.model,
            seeds=run.seeds,
            engine=self.context.engine,
            batch_size=run.local.batch_size,
        )
        self.actors.configure(setup)
        # It trains nothing here, so any engine will do, and none need be measured.
        reference = Worker(run.data, ray.get(ref), run.model, run.seeds, engine="loop")
        device, engine = agree_on_engine(self.actors, setup)
        origin = {**self.context.origin, "device": device, "engine": engine}
        work = OnActors(self.actors, reference, should_piggyback(engine))
        return Session(run, self.store, work, origin, self.context.flush_seconds)

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
            return {"run_id": self.key, "done": True, "lost": str(error)}

    def _step(self) -> dict[str, Any]:
        nothing = {"round": 0, "test_accuracy": float("nan"), "test_loss": float("nan")}
        result: dict[str, Any] = {"done": True, **nothing}
        try:
            if not self.begun:
                self._begin()
            if self.session is None:
                entry = self.store.ledger_entry(self.key)
                result |= entry.metrics if entry else {}
            else:
                result["done"] = self.session.advance(self.context.report_seconds)
                result |= self.session.metrics() | {"writes": self.session.writes}
        except StorageError:
            raise
        except Exception as error:
            self._fail(error)
        if result["done"]:
            self._close()
        return {"run_id": self.key, **result}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Return an empty checkpoint for Tune, as `Session` writes the run's own one."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Ignore Tune's checkpoint: `Session` goes on from the run's own one."""

    def _fail(self, error: Exception) -> None:
        """Record the failure with the line that raised it, and the rows before it."""
        # The last frame is where the error was raised, often in the user's own code.
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = (
            f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
        )
        config = self.run.model_dump(mode="json") if self.run else None
        entry = LedgerEntry.now(config, Status.FAILED, reason, **self.context.origin)
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
