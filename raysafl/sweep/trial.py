"""A Tune trial: the coordinator, which runs the rounds of one run on its client actors.

Tune reuses the coordinator's process for the next trial, and the coordinator keeps its client
actors, so a sweep pays for starting processes once. All state of the last run is replaced in
`_begin`; a test compares a reused trial with a fresh one.
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
    """What every trial of a sweep shares. `datasets` are in Ray's object store, by JSON."""

    store: Location
    make: Make
    hardware: Hardware
    datasets: dict[str, "ray.ObjectRef[Dataset]"]
    origin: dict[str, str]
    report_seconds: float
    flush_seconds: float
    engine: str = "auto"


class Trial(tune.Trainable):
    """The coordinator of one run after the other.

    A run that raises is recorded as failed, with the reason, and the trial ends in good order;
    so does one whose client actors are lost again and again. Only the loss of the coordinator's
    own process is an error of the trial, which Tune tries again from the checkpoint.
    """

    def setup(self, config: dict[str, Any], context: Context | None = None) -> None:
        """Start the client actors. Nothing of the run yet: Tune may set up an actor for a trial
        and then give the trial to another one, and only one may touch its rows.
        """
        assert context is not None
        torch.set_num_threads(1)
        self.context = context
        self.store = Store(context.store)
        self.actors = start_actors(context.hardware)
        self._forget(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """The next run, on the same actors."""
        self._stop()
        self._forget(new_config)
        return True

    def _forget(self, config: dict[str, Any]) -> None:
        """Keep nothing of the last run."""
        self.session: Session | None = None
        self.run: Run | None = None
        self.alone: FileLock | RemoteLock | None = None
        self.begun = False
        self.key = str(config.get("run", "")) or sample_key(config)

    def _begin(self) -> None:
        """Make the run ready, unless it has ended before; wait for a trial with the same run.

        Two samples may be one run, and a killed driver's trials live on for a moment.
        """
        self.begun = True
        self.run = self.context.make(self.config)
        self.key = self.run.id
        self.alone = self.store.run_lock(self.key)
        self.alone.acquire()
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
        """Rounds for `report_seconds`; the last one whose evaluation has come is reported.

        Storage that fails is no fault of the run: it is reported as `lost`, the driver ends the
        sweep, and the run goes on from its checkpoint another day.
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
        """Tune's own checkpoint is empty: the run's lies in the sweep's folder (`Session`)."""
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing to do: `_begin` has gone on from the run's checkpoint."""

    def _fail(self, error: Exception) -> None:
        """Record the failure and the rows before it; the traceback's last line says where."""
        at = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
        config = self.run.model_dump(mode="json") if self.run else None
        entry = LedgerEntry.now(config, Status.FAILED, reason, **self.context.origin)
        self.store.write_ledger(self.key, entry)
        if self.session is not None:
            with suppress(Exception):  # the evaluation under way may fail as well
                self.session.write_rows()
        self._close()

    def _stop(self) -> None:
        try:
            with suppress(StorageError):  # the sweep ends for it; the last checkpoint stays
                if self.session is not None:
                    self.session.flush()
        finally:
            self._close()

    def _close(self) -> None:
        """Let the run go; another trial may have it."""
        self.session = None
        if self.alone is not None:
            self.alone.release()

    def cleanup(self) -> None:
        """The trial is over: keep what an early stop leaves, and let the actors go."""
        try:
            self._stop()
        finally:
            self.actors.kill()
