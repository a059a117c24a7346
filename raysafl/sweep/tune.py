"""Carries out packs on Ray: each is a trial of Ray Tune."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import ray.cloudpickle
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search.basic_variant import BasicVariantGenerator

from raysafl.core.held import held_in_process
from raysafl.core.problem import Dataset
from raysafl.core.text import format_bytes
from raysafl.runtime.gpus import idle_note
from raysafl.runtime.hardware import Hardware
from raysafl.runtime.ray_private import environment
from raysafl.runtime.ray_session import (
    check_fits,
    ray_session,
    resources_of_nodes,
    watched_head,
)
from raysafl.sweep.coordinator import Context, Coordinator
from raysafl.sweep.execution import Datasets, Job, Room, labels_of_packs, scratch
from raysafl.sweep.packs import MEMORY_OF_PACK, PACK_KEY, Pack
from raysafl.sweep.tune_callback import HaltTrials, WatchTrials
from raysafl.sweep.tune_hooks import Shown, keep_logs
from raysafl.sweep.user_code import ship_user_code
from raysafl.sweep.watch import Watch

# How often a trial whose process was lost is started again.
TRIAL_RETRIES = 2
# With these settings Tune prints no tables and writes neither logs nor snapshots, as the
# results are in Parquet, and leaves Ctrl-C to `execute`.
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


@dataclass
class OnRay:
    """Carries out packs as trials of Ray Tune, each with client actors of its own.

    Args:
        hardware: what a trial runs on.
        address: the address of a running Ray cluster; None starts a Ray here.
        say: takes a message for the user.
    """

    hardware: Hardware
    address: str | None
    say: Callable[[str], None]
    # The bytes of the smallest GPU, once Ray has started; None if none is known.
    _gpu_memory: int | None = field(default=None, init=False)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Provide Ray for the block.

        Raises:
            ValueError: no cluster answers, or a trial does not fit it.
        """
        with ray_session(self.address, preload=Coordinator.__module__):
            self._gpu_memory = check_fits(self.hardware)
            if note := idle_note(self.hardware, resources_of_nodes()):
                self.say(note)
            yield

    def room(self) -> Room:
        """Return the trials that Ray's machines have room for, and their memory."""
        nodes = resources_of_nodes()
        memory = self.hardware.memory_of_trial(nodes)
        if self._gpu_memory is not None:
            memory = min(memory, self._gpu_memory * self.hardware.gpus)
        return Room(self.hardware.trials_at_once(nodes), memory * MEMORY_OF_PACK)

    def carry_out(
        self, job: Job, packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        """Run a trial for each pack; see `Executor.carry_out`."""
        _ship(job, packs)
        by_id = {pack.id: pack for pack in packs}
        refs = {pack_id: ray.put(pack) for pack_id, pack in by_id.items()}
        context = Context(
            terms=job.terms(lambda config: ray.get(refs[config[PACK_KEY]])),
            hardware=self.hardware,
            datasets=_put_datasets(datasets),
        )
        follow = WatchTrials(
            watch, lambda config: by_id[config[PACK_KEY]], self.hardware
        )
        space = {PACK_KEY: tune.grid_search(list(by_id))}
        self._fit(job, context, follow, space, 1, Shown(labels_of_packs(job, packs)))

    def search(self, job: Job, watch: Watch) -> None:
        """Let Tune sample the runs one by one, each in a trial of its own."""
        _ship(job, [])
        pack_of = job.sampled_pack_of()
        # The data of a sampled run are not known before it is made in its trial.
        context = Context(
            terms=job.terms(pack_of),
            hardware=self.hardware,
            held=_put_datasets(held_in_process()),
        )
        follow = WatchTrials(watch, pack_of, self.hardware)
        space = dict(job.sweep.space)
        self._fit(job, context, follow, space, job.sweep.num_samples, Shown({}))

    def _fit(
        self,
        job: Job,
        context: Context,
        follow: WatchTrials,
        space: dict[str, Any],
        num_samples: int,
        shown: Shown,
    ) -> None:
        """Run the trials of a search space."""
        # The reasons of failed runs are in the ledger, so Tune need not log them.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        with environment(**QUIET), scratch(job.store) as folder:
            tuner = self._tuner(job, context, folder, follow, space, num_samples, shown)
            try:
                with watched_head(follow.watch.interrupt):
                    tuner.fit()
            finally:
                if job.callbacks:
                    keep_logs(folder / job.sweep.name, job.store.logs)

    def _tuner(
        self,
        job: Job,
        context: Context,
        folder: Path,
        follow: WatchTrials,
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
        sweep = job.sweep
        metric, mode = sweep.goal
        chooses = bool(sweep.scheduler or sweep.search_alg)
        # Callbacks show a person the names of trials, and write into their folders.
        seen = bool(job.callbacks)
        return tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                metric=metric if chooses else None,
                mode=mode if chooses else None,
                num_samples=num_samples,
                search_alg=sweep.search_alg or sampler,
                scheduler=sweep.scheduler,
                max_concurrent_trials=most if sweep.search_alg else None,
                reuse_actors=True,
                trial_name_creator=shown.name if seen else None,
                trial_dirname_creator=shown.folder if seen else _trial_id,
            ),
            run_config=tune.RunConfig(
                name=sweep.name,
                storage_path=str(folder),
                failure_config=tune.FailureConfig(max_failures=TRIAL_RETRIES),
                callbacks=[follow, *([shown, *job.callbacks] if seen else [])],
                stop=HaltTrials(follow.watch, job.rules),
                verbose=0,
            ),
        )


def _trial_id(trial: Trial) -> str:
    return str(trial.trial_id)


def _ship(job: Job, packs: Sequence[Pack]) -> None:
    """Send the user's code to the workers, with that of components in a search space."""
    runs = [run for pack in packs for run in pack.runs]
    ship_user_code(job.sweep, [*runs, *([job.sweep.base] if job.sweep.base else [])])


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
