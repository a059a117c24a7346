"""Carries out packs in this process, one after the other: no Ray, no other process.

A small sweep takes less time here than Ray takes to start. Everything else of a sweep is
the same: rows, checkpoints, display, MLflow, search algorithms, callbacks, rules to stop.
"""

import datetime
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import psutil

from raysafl.cluster.gpus import smallest_memory
from raysafl.cluster.hardware import Hardware
from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run
from raysafl.sweep.execution import Datasets, Job, Room, labels_of_packs, scratch
from raysafl.sweep.hosting import torch_threads, worker_of
from raysafl.sweep.open_pack import Host, Hosted, News, OpenPack
from raysafl.sweep.packs import PACK_KEY, Pack
from raysafl.sweep.prepare import dataset_of
from raysafl.sweep.session import is_interrupt
from raysafl.sweep.stop_rules import Halt
from raysafl.sweep.watch import Watch
from raysafl.training.device import keep_to_share
from raysafl.training.resident import Resident

if TYPE_CHECKING:
    from raysafl.sweep.callbacks import CallbacksTold


@dataclass(frozen=True)
class Here:
    """Carries out packs in this process.

    Args:
        hardware: how many threads torch has, and whether a GPU trains. There is one
            worker, which stands for one client actor.
    """

    preparation: ClassVar[str] = "loading data"
    hardware: Hardware
    resident: Resident = field(default_factory=Resident, repr=False)

    @contextmanager
    def started(self) -> Iterator[None]:
        """Give torch the threads, and the share of the GPU, that a client actor has."""
        if self.hardware.gpu_share:
            keep_to_share(self.hardware.gpu_share)
        with torch_threads(max(1, int(self.hardware.cpus))):
            yield

    def room(self) -> Room:
        """Return room for one pack, in the memory that is free here and on the GPU."""
        memory = float(psutil.virtual_memory().available)
        if self.hardware.gpu_share:
            memory = min(memory, smallest_memory() * self.hardware.gpu_share)
        return Room(1, memory)

    def carry_out(
        self, job: Job, packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        """Carry out packs one after the other; see `Executor.carry_out`."""
        host = partial(self._host, job, dict(datasets))
        with _telling(job, watch, host, labels_of_packs(job, packs)) as tell:
            for pack in packs:
                if watch.ends_early:
                    return
                tell(pack, pack.id)

    def search(self, job: Job, datasets: Datasets, watch: Watch) -> None:
        """Carry out one pack after the other; see `Executor.search`."""
        # Imported here, because it imports Tune, whose import takes a second.
        from raysafl.sweep.sampler import Sampler

        known = dict(datasets)
        host = partial(self._host, job, known)
        sampler = Sampler(job, known, watch, self.room(), lambda pack, dataset: pack)
        with _telling(job, watch, host, sampler.labels) as tell:
            for number in itertools.count():
                trial_id = f"{number:05d}"
                config = sampler.suggest(trial_id)
                # It returns a text when it has no more to suggest.
                if not isinstance(config, Mapping):
                    return
                tell(config[PACK_KEY], trial_id)
                sampler.on_trial_complete(trial_id)

    def _host(
        self, job: Job, datasets: dict[str, Dataset], runs: Sequence[Run]
    ) -> Hosted:
        """Host the cells of runs with one dataset, model and objective in this process.

        Args:
            job: the sweep, and how it is carried out.
            datasets: the datasets that are loaded; others are added.
            runs: the runs.
        """
        gpus = self.hardware.gpu_share
        work = worker_of(
            runs,
            dataset_of(runs[0], datasets),
            job.options.engine,
            "cuda" if gpus else "cpu",
            self.resident,
            gpus or 1.0,
        )
        return Hosted(work, *work.describe())


# Carries out a pack, of a trial with an id.
Tell: TypeAlias = Callable[[Pack, str], None]


@contextmanager
def _telling(
    job: Job, watch: Watch, host: Host, labels: Mapping[str, Mapping[str, Any]]
) -> Iterator[Tell]:
    """Provide a function that carries out a pack, and tells everybody what becomes of it.

    Args:
        job: the sweep, and how it is carried out.
        watch: takes the news.
        host: trains and evaluates.
        labels: the labels of each pack's run, by the pack's id, for the callbacks.
    """
    halt = Halt(watch, job.rules)
    terms = job.terms
    with scratch(job.store) as folder, _callbacks_told(job, labels, folder) as told:

        def tell(pack: Pack, trial_id: str) -> None:
            opened = OpenPack(pack, job.code_of(pack), terms, host, is_interrupt)
            if told is not None:
                told.started(trial_id, {PACK_KEY: pack})
            reports = Reports(trial_id)
            news = News()
            stopped = False
            try:
                while not (news.done or stopped or halt.stop_all()):
                    news = opened.advance(lambda: watch.ends_early)
                    watch.take(news)
                    watch.show([(pack, news)])
                    result = reports.of(news)
                    if told is not None:
                        told.reported(trial_id, result)
                    stopped = halt(trial_id, result) and not news.done
            finally:
                opened.stop()
            watch.complete(news, pack)
            watch.show([])
            if told is not None:
                told.ended(trial_id)

        yield tell


class Reports:
    """Makes reports of news, as Tune makes them for its callbacks and stoppers.

    Args:
        trial_id: the id of the pack's trial.
    """

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
        self.count = 0
        self.began = self.last = time.monotonic()

    def of(self, news: News) -> dict[str, Any]:
        """Return the metrics of some news, with the time and the number of the report."""
        now = time.monotonic()
        then = self.last
        self.last = now
        self.count += 1
        date = datetime.datetime.now()
        return {
            **news.metrics,
            # TensorBoard draws curves over Tune's number of time steps.
            "timesteps_total": news.metrics["round"],
            "training_iteration": self.count,
            "time_this_iter_s": now - then,
            "time_total_s": now - self.began,
            "timestamp": int(date.timestamp()),
            "date": date.strftime("%Y-%m-%d_%H-%M-%S"),
            "trial_id": self.trial_id,
            "hostname": platform.node(),
            "pid": os.getpid(),
            "done": news.done,
        }


@contextmanager
def _callbacks_told(
    job: Job, labels: Mapping[str, Mapping[str, Any]], folder: Path
) -> "Iterator[CallbacksTold | None]":
    """Provide what tells the user's callbacks of trials; None if there are no callbacks.

    Args:
        job: the sweep, and how it is carried out.
        labels: the labels of each pack's run, by the pack's id.
        folder: where callbacks may write files.
    """
    if not job.options.callbacks:
        yield None
        return
    # Imported here, because it imports Tune, whose import takes a second.
    from raysafl.sweep.callbacks import CallbacksTold, Shown, keep_logs

    told = CallbacksTold(job.options.callbacks, Shown(labels), folder, job.sweep)
    try:
        yield told
    finally:
        told.finished()
        keep_logs(told.written, job.store.logs)
