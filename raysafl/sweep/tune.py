"""Runs the trials of a sweep as an experiment of Ray Tune."""

import logging
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import ray
import ray.cloudpickle
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysafl.core.held import held_here
from raysafl.core.problem import Dataset
from raysafl.core.text import format_bytes
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.provenance import commit, provenance
from raysafl.runtime.ray_private import environment
from raysafl.runtime.ray_session import resources_of_nodes, watched_head
from raysafl.simulation.run import Run
from raysafl.storage.locks import lock
from raysafl.storage.manifest import Entry, Label
from raysafl.storage.paths import Location, StorageError, local_folder
from raysafl.storage.store import Store
from raysafl.sweep.code_digest import CodeDigests
from raysafl.sweep.coordinator import Context, Coordinator, PackOf
from raysafl.sweep.definition import Sweep, sample_key
from raysafl.sweep.old_code import sampled_run_has_ended
from raysafl.sweep.packs import PACK_KEY, Pack, form_packs, memory_note
from raysafl.sweep.progress import Display, run_name
from raysafl.sweep.sampling import draw
from raysafl.sweep.session import failure
from raysafl.sweep.stale import Stale
from raysafl.sweep.tune_callback import Halt, Watch, labels_of
from raysafl.sweep.tune_hooks import Shown, keep_logs, logs_folder
from raysafl.sweep.user_code import ship_user_code
from raysafl.tracking.tracker import Tracker

# Seconds between two reports of a trial to Tune, unless a scheduler needs every round.
REPORT_SECONDS = 2.0
# The share of a trial's memory that the vectors of a pack may take.
MEMORY_OF_PACK = 0.25
# How often a trial whose process was lost is started again.
TRIAL_RETRIES = 2
# With these settings Tune prints no tables and writes neither logs nor snapshots, as the
# results are in Parquet, and leaves Ctrl-C to `_signals_put_off`.
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass(frozen=True)
class Tuning:
    """Runs a sweep's trials by Tune.

    Args:
        sweep: the sweep.
        todo: the runs to do, by id; unused if the sweep samples its runs.
        store: the sweep's folder.
        hardware: what a trial runs on.
        engine: the engine that computes gradients.
        flush_seconds: the time between two checkpoints of a run.
        display: shows the progress.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        say: takes a message for the user.
        digests: the digests of the user's classes.
        stale: what becomes of a run whose code has changed.
        callbacks: the user's callbacks of Tune.
        stoppers: the user's rules that stop runs, or the whole sweep.
    """

    sweep: Sweep
    todo: Mapping[str, Run]
    store: Store
    hardware: Hardware
    engine: str
    flush_seconds: float
    display: Display
    tracker: Tracker | None
    say: Callable[[str], None]
    digests: CodeDigests
    stale: Stale
    callbacks: Sequence[tune.Callback] = ()
    stoppers: Sequence[tune.Stopper] = ()

    @property
    def _is_one_by_one(self) -> bool:
        """Whether each trial has one run, and reports every evaluated round of it.

        Tune's schedulers, callbacks and stoppers know trials, and no runs within them.
        """
        return bool(self.sweep.scheduler or self.callbacks or self.stoppers)

    def fit(self, datasets: Mapping[str, Dataset]) -> None:
        """Run all trials on the Ray that was started before.

        A pack of several runs that could not be carried out is tried in halves, down to
        single runs, when the other packs have ended.

        Args:
            datasets: the loaded datasets, by the `source_key` of the data that load
                them.

        Raises:
            StorageError: results could not be written any more; the other runs have not
                run.
            KeyboardInterrupt: Ctrl-C was pressed. The trials have written where they
                were.
        """
        # The reasons of failed runs are in the ledger, so Tune need not log them.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        with environment(**QUIET):
            # A search space may hold components of the user's, which are in drawn runs.
            runs = self._drawn() if self.sweep.is_random else self.todo
            base = [self.sweep.base] if self.sweep.base else []
            ship_user_code(self.sweep, [*runs.values(), *base])
            context = Context(
                store=self.store.path,
                pack_of=self._sampled_pack_of(),
                hardware=self.hardware,
                datasets={},
                origin={**provenance(), "commit": commit()},
                report_seconds=0.0 if self._is_one_by_one else REPORT_SECONDS,
                flush_seconds=self.flush_seconds,
                engine=self.engine,
                code=self.digests.found,
                stale=self.stale,
                metric=self.sweep.goal[0],
            )
            if not self.sweep.is_grid and not self.sweep.is_random:
                # The data of a sampled run are not known before it is made in its trial.
                held = _put_datasets(held_here())
                self._fit_sampled(replace(context, held=held))
                return
            datasets = {**datasets, **_missing_datasets(runs.values(), datasets)}
            context = replace(context, datasets=_put_datasets(datasets))
            packs = self._packs(runs.values(), datasets)
            while packs:
                packs = self._fit_packs(context, packs)

    def _drawn(self) -> dict[str, Run]:
        """Draw the runs of a sweep that samples at random, and label them.

        A configuration of which no run can be made is recorded as failed.

        Returns:
            The runs that have not ended, by id.
        """
        manifest = self.store.manifest()
        ledger = self.store.ledger()
        entries: dict[str, Entry] = {}
        runs: dict[str, Run] = {}
        for config in draw(self.sweep.space, self.sweep.num_samples):
            labels = labels_of(config)
            try:
                run = self.sweep.build(config)
            # The user's own function may raise anything.
            except Exception as error:
                run_id = sample_key(config)
                failed = failure(error, None, provenance())
                self.store.write_ledger(run_id, failed)
                name = run_name(labels, run_id)
                self.display.add_run(name, failed.status, failed.reason, "")
            else:
                run_id = run.id
                if not sampled_run_has_ended(
                    self.store,
                    run_id,
                    ledger.get(run_id),
                    self.digests.of_run(run),
                    self.stale,
                    config,
                ):
                    runs[run_id] = run
            entries.setdefault(run_id, Entry(run_id=run_id, labels=labels))
        known = manifest.labels()
        new = [entry for run_id, entry in entries.items() if run_id not in known]
        manifest = self.sweep.measuring(manifest, runs.values())
        self.store.write_manifest(manifest.extended(new))
        return runs

    def _packs(
        self, runs: Iterable[Run], datasets: Mapping[str, Dataset]
    ) -> list[Pack]:
        """Form packs for the cores and the memory of Ray's machines."""
        if self._is_one_by_one:
            return [Pack((run,)) for run in runs]
        nodes = resources_of_nodes()
        at_once = self.hardware.trials_at_once(nodes)
        memory = self.hardware.memory_of_trial(nodes) * MEMORY_OF_PACK
        packs = form_packs(runs, datasets, self.hardware, at_once, memory)
        if note := memory_note(packs):
            self.say(note)
        return packs

    def _fit_packs(self, context: Context, packs: Sequence[Pack]) -> list[Pack]:
        """Run a trial for each pack.

        Returns:
            The halves of the packs that could not be carried out as a whole.
        """
        by_id = {pack.id: pack for pack in packs}
        refs = {pack_id: ray.put(pack) for pack_id, pack in by_id.items()}
        context = replace(
            context, pack_of=lambda config: ray.get(refs[config[PACK_KEY]])
        )
        watch = self._watch(lambda config: by_id[config[PACK_KEY]])
        known = self.store.manifest().labels()
        labels = {i: known.get(pack.runs[0].id, {}) for i, pack in by_id.items()}
        space = {PACK_KEY: tune.grid_search(list(by_id))}
        self._fit(context, watch, space, 1, Shown(labels))
        unfinished = [] if watch.ends_early else watch.unfinished
        return [half for pack in unfinished for half in pack.halves(watch.shown)]

    def _fit_sampled(self, context: Context) -> None:
        """Let Tune sample the runs one by one, each in a trial of its own."""
        watch = self._watch(context.pack_of)
        space = dict(self.sweep.space)
        self._fit(context, watch, space, self.sweep.num_samples, Shown({}))

    def _fit(
        self,
        context: Context,
        watch: Watch,
        space: dict[str, Any],
        num_samples: int,
        shown: Shown,
    ) -> None:
        """Run the trials of a search space.

        Raises:
            StorageError: results could not be written any more.
        """
        with _scratch(self.store) as folder:
            tuner = self._tuner(context, folder, watch, space, num_samples, shown)
            try:
                with _signals_put_off(watch), watched_head(watch.interrupt):
                    tuner.fit()
            finally:
                if self.callbacks:
                    keep_logs(folder / self.sweep.name, logs_folder(self.store))
        if watch.lost:
            raise StorageError(watch.lost)

    def _sampled_pack_of(self) -> PackOf:
        """Return a function that makes a pack of the run of a sampled configuration.

        It is sent to the trials, which do without the scheduler and the search
        algorithm of the sweep.
        """
        build = replace(self.sweep, scheduler=None, search_alg=None).build
        return lambda config: Pack((build(config),))

    def _tuner(
        self,
        context: Context,
        folder: Path,
        watch: Watch,
        space: dict[str, Any],
        num_samples: int,
        shown: Shown,
    ) -> tune.Tuner:
        # The coordinator needs no core of its own, so its bundle is empty.
        bundles = [{}, *[self.hardware.bundle() for _ in range(self.hardware.actors)]]
        trainable = tune.with_resources(
            tune.with_parameters(Coordinator, context=context),
            tune.PlacementGroupFactory(bundles),
        )
        # Tune ignores `max_concurrent_trials` for a generator that is given to it.
        most = self.hardware.trials
        sampler = BasicVariantGenerator(random_state=0, max_concurrent=most or 0)
        metric, mode = self.sweep.goal
        chooses = bool(self.sweep.scheduler or self.sweep.search_alg)
        # Callbacks show a person the names of trials, and write into their folders.
        seen = bool(self.callbacks)
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric=metric if chooses else None,
                mode=mode if chooses else None,
                num_samples=num_samples,
                search_alg=self.sweep.search_alg or sampler,
                scheduler=self.sweep.scheduler,
                max_concurrent_trials=most if self.sweep.search_alg else None,
                reuse_actors=True,
                trial_name_creator=shown.name if seen else None,
                trial_dirname_creator=shown.folder if seen else _trial_id,
            ),
            run_config=tune.RunConfig(
                name=self.sweep.name,
                storage_path=str(folder),
                failure_config=tune.FailureConfig(max_failures=TRIAL_RETRIES),
                callbacks=[watch, *([shown, *self.callbacks] if seen else [])],
                stop=Halt(watch, self.stoppers),
                verbose=0,
            ),
        )

    def _watch(self, pack_of: PackOf) -> Watch:
        labels = self.store.manifest().labels()

        def sampled(run_id: str, values: dict[str, Label], run: Run | None) -> None:
            manifest = self.store.manifest()
            entry = Entry(run_id=run_id, labels=values)
            try:
                manifest = self.sweep.measuring(manifest, [run] if run else [])
            except ValueError as error:
                # Nothing but what its columns mean is then unknown.
                self.say(str(error))
            self.store.write_manifest(manifest.extended([entry]))

        rules = ["the scheduler"] if self.sweep.scheduler else []
        rules += ["`stop`"] if self.stoppers else []
        return Watch(
            self.store,
            pack_of,
            self.display,
            self.tracker,
            self.hardware,
            labels,
            sampled,
            self.digests.of_run,
            " or ".join(rules),
        )


def _trial_id(trial: Trial) -> str:
    return str(trial.trial_id)


def wait_for_earlier_trials(store: Store) -> None:
    """Wait until the trials of a killed driver, which live on for a moment, have ended.

    A trial holds a lock for as long as it may write.
    """
    files: list[Location] = sorted(store.path.glob("tune/*.lock"), key=str)
    for file in files:
        held = lock(file)
        held.acquire()
        held.release()


def _missing_datasets(
    runs: Iterable[Run], known: Mapping[str, Dataset]
) -> dict[str, Dataset]:
    """Load the datasets of runs that were not known when the others were loaded."""
    loaded: dict[str, Dataset] = {}
    for run in runs:
        if run.data.source_key not in {*known, *loaded}:
            loaded[run.data.source_key] = run.data.load()
    return loaded


def _put_datasets(
    datasets: Mapping[str, Dataset],
) -> dict[str, "ray.ObjectRef[Dataset]"]:
    """Put the datasets into the memory that all processes of a node share.

    Raises:
        ValueError: they do not fit.
    """
    try:
        return {name: ray.put(dataset) for name, dataset in datasets.items()}
    except (
        ray.exceptions.ObjectStoreFullError,
        ray.exceptions.OutOfDiskError,
    ) as error:
        needed = sum(
            part.x.nbytes
            for data in datasets.values()
            for part in (data.train, data.test)
        )
        raise ValueError(
            f"the datasets, {format_bytes(needed)}, do not fit the memory that Ray's processes "
            f"share: {str(error).splitlines()[0]}. Free /dev/shm (in docker: a larger "
            "--shm-size) and the folder of Ray's files (/tmp/ray, or RAY_TMPDIR)"
        ) from error


@contextmanager
def _signals_put_off(watch: Watch) -> Iterator[None]:
    """Let a signal that would raise an error end the trials in order first.

    Its handler, such as the one that raises KeyboardInterrupt on Ctrl-C, is called when
    the block has ended. A second signal acts at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {n: h for n in names if callable(h := signal.getsignal(n))}
    arrived: list[signal.Signals] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        restore()
        arrived.append(signal.Signals(number))
        watch.interrupt()

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, put_off)
    try:
        yield
    finally:
        restore()
        for name in arrived:
            handlers[name](name, None)


@contextmanager
def _scratch(store: Store) -> Iterator[Path]:
    """Provide a folder for Tune: in the sweep's folder if that is on this machine.

    Tune writes pickles into it. Nothing is ever read from it, and it is deleted
    afterwards.
    """
    if store.is_remote:
        with tempfile.TemporaryDirectory(
            prefix="raysafl-", ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder) / "tune"
        return
    try:
        # It also holds the locks of runs, which the trials of a killed driver may still
        # have.
        yield local_folder(store.path) / "tune"
    finally:
        shutil.rmtree(local_folder(store.path) / "tune", ignore_errors=True)
