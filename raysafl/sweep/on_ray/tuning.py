"""Carries out packs on Ray: each is a trial of Ray Tune."""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import ray
import ray.cloudpickle
from ray import tune

from raysafl.cluster.gpus import check_seen, used_note
from raysafl.cluster.hardware import Hardware
from raysafl.cluster.ray_private import environment
from raysafl.cluster.ray_session import ray_session, resources_of_nodes
from raysafl.core.problem import Dataset
from raysafl.core.text import format_bytes
from raysafl.sweep.code import ship_user_code
from raysafl.sweep.new_runs import Datasets, Room, room_on
from raysafl.sweep.on_ray.coordinator import Coordinator, Given
from raysafl.sweep.on_ray.sampler import InOrder, Packs, Sampler
from raysafl.sweep.on_ray.watching import (
    HaltTrials,
    WatchTrials,
    keep_logs,
    rules_of,
)
from raysafl.sweep.packs import Pack
from raysafl.sweep.watch import Watch

# How often a trial whose process was lost is started again.
TRIAL_RETRIES = 2
# At least so many trials may wait for room at the same time, as Tune's own grids do: a
# cluster that adds nodes adds them for these.
LEAST_PENDING = 16
# With these settings Tune prints no tables and writes neither logs nor snapshots, as the
# results are in Parquet, and leaves Ctrl-C to Python.
QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
# A process has one Ray, and one register of Tune's trainables, which threads would change
# under each other: sweeps of several threads are carried out one after the other.
ONE_AT_A_TIME = threading.RLock()


@dataclass
class OnRay:
    """Carries out packs as trials of Ray Tune, each with client actors of its own.

    Args:
        hardware: what a trial runs on.
        address: the address of a running Ray cluster; None starts a Ray here.
        say: takes a message for the user.
        wait_nodes: how many nodes the cluster must have before anything runs.
    """

    preparation: ClassVar[str] = "starting Ray"
    beginning: ClassVar[str] = "starting Ray's processes"
    hardware: Hardware
    address: str | None
    say: Callable[[str], None]
    wait_nodes: int = 0
    # The bytes of the smallest GPU, once Ray has started; None if none is needed or known.
    _gpu_memory: int | None = field(default=None, init=False)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Provide Ray for the block, once no other thread uses it.

        Raises:
            ValueError: no cluster answers, or a trial does not fit it, or needs GPUs that
                torch does not see.
        """
        preload = Coordinator.__module__
        with ONE_AT_A_TIME, ray_session(self.address, preload, self.wait_nodes):
            nodes = resources_of_nodes()
            gpus = sum(node.get("GPU", 0) for node in nodes)
            self.hardware = self.hardware.where_there_are(gpus)
            self.hardware.check(nodes)
            self._gpu_memory = check_seen() if self.hardware.gpu_share else None
            trials = self.hardware.trials_at_once(nodes)
            if note := used_note(self.hardware, trials, gpus):
                self.say(note)
            yield

    def room(self) -> Room:
        """Return the trials that Ray's machines have room for, and their memory."""
        return room_on(resources_of_nodes(), self.hardware, self._gpu_memory)

    def carry_out(
        self, packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        """Run a trial for each pack; see `Here.carry_out`.

        Raises:
            ValueError: the search algorithm takes no search space.
        """
        references = _put(datasets)

        def given(pack: Pack, dataset: Dataset) -> Given:
            """Return what a trial is given of a pack."""
            source = pack.runs[0].data.source_key
            if source not in references:
                references.update(_put({source: dataset}))
            return Given(pack.id, ray.put(watch.given(pack)), references[source])

        def asked_for(pack: Pack, dataset: Dataset) -> Given:
            """Return what a trial is given of a pack that was not known before."""
            _ship([pack])
            return given(pack, dataset)

        if watch.sweep.is_searched:
            sampler = Sampler(watch, dict(datasets), self.room(), asked_for)
            # Packs that are halved down to single runs are fewer than twice as many.
            self._fit(watch, sampler, sampler.packs, 2 * watch.sweep.num_samples)
            return
        _ship(packs)
        order = InOrder([given(p, datasets[p.runs[0].data.source_key]) for p in packs])
        # Nothing is learnt from a trial, so others need not wait until it has begun.
        pending = str(max(LEAST_PENDING, self.room().packs))
        with environment(TUNE_MAX_PENDING_TRIALS_PG=pending):
            self._fit(watch, order, {pack.id: pack for pack in packs}, len(packs))

    def _fit(
        self, watch: Watch, search: Packs, packs: Mapping[str, Pack], most: int
    ) -> None:
        """Run a trial for each pack, of which there are so many at most.

        Args:
            watch: takes the news.
            search: gives each trial its pack.
            packs: the packs, by id; a search algorithm adds to them.
            most: how many trials there are at most.
        """
        # The coordinator needs no core of its own, so its bundle is empty.
        bundles = [{}, *[self.hardware.bundle() for _ in range(self.hardware.actors)]]
        sweep = watch.sweep
        decides = sweep.scheduler or sweep.is_searched
        metric, mode = watch.goal if decides else (None, None)
        follow = WatchTrials(watch, packs, self.hardware)
        # Callbacks show a person the names of trials, and write into their folders. Tune
        # copies what it is given, but no functions.
        callbacks = watch.options.callbacks
        folder = watch.store.path / "tune"
        # The reasons of failed runs are in the ledger, so Tune need not log them.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
        with environment(**QUIET):
            trainable = tune.with_resources(
                tune.with_parameters(
                    Coordinator, terms=watch.terms, hardware=self.hardware
                ),
                tune.PlacementGroupFactory(bundles),
            )
            # Ray shows actors by this name.
            trainable.__qualname__ = Coordinator.__qualname__
            tuner = tune.Tuner(
                trainable,
                tune_config=tune.TuneConfig(
                    metric=metric,
                    mode=mode,
                    num_samples=most,
                    search_alg=search,
                    scheduler=sweep.scheduler,
                    max_concurrent_trials=self.hardware.trials,
                    reuse_actors=True,
                    trial_name_creator=(lambda t: follow.name(t))
                    if callbacks
                    else None,
                    trial_dirname_creator=lambda t: (
                        follow.folder(t) if callbacks else str(t.trial_id)
                    ),
                ),
                run_config=tune.RunConfig(
                    name=sweep.name,
                    storage_path=str(folder),
                    failure_config=tune.FailureConfig(max_failures=TRIAL_RETRIES),
                    # It would be a file in the driver's folder, which other machines lack.
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                    callbacks=[follow, *callbacks],
                    stop=HaltTrials(watch, rules_of(watch.options.stop)),
                    verbose=0,
                ),
            )
            try:
                tuner.fit()
            finally:
                if callbacks:
                    keep_logs(folder / sweep.name, watch.store.logs)


def _ship(packs: Iterable[Pack]) -> None:
    """Send the user's code to the workers."""
    runs = (run for pack in packs for run in pack.runs)
    ship_user_code(part for run in runs for part in run.components())


def _put(datasets: Datasets) -> dict[str, "ray.ObjectRef[Dataset]"]:
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
        parts = (part for own in datasets.values() for part in (own.train, own.test))
        needed = sum(part.x.nbytes for part in parts)
        raise ValueError(
            f"the datasets, {format_bytes(needed)}, do not fit the memory that Ray's processes "
            f"share: {str(error).splitlines()[0]}. Free /dev/shm (in docker: a larger "
            "--shm-size) and the folder of Ray's files (/tmp/ray, or RAY_TMPDIR)"
        ) from error
