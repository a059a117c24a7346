"""Carries out packs in this process, one after the other: no Ray, no other process.

A small sweep takes less time here than Ray takes to start. Its rows, checkpoints, display
and MLflow are the same. What acts on single runs while they go on is Tune's, and needs Ray:
search algorithms, schedulers, callbacks, rules to stop.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import psutil

from raysafl.cluster.gpus import smallest_memory
from raysafl.cluster.hardware import Hardware
from raysafl.simulation.run import Run
from raysafl.sweep.new_runs import Datasets, Room
from raysafl.sweep.open_pack import Hosted, OpenPack
from raysafl.sweep.packs import Pack
from raysafl.sweep.prepare import dataset_of
from raysafl.sweep.simulate import torch_threads, worker_of
from raysafl.sweep.watch import Watch
from raysafl.training.device import keep_to_share
from raysafl.training.resident import Resident


@dataclass(frozen=True)
class Here:
    """Carries out packs in this process.

    Args:
        hardware: how many threads torch has, and whether a GPU trains. There is one
            worker, which stands for one client actor.

    Attributes:
        preparation: what `started` does, for the display.
        beginning: what is done until the first pack begins; empty if it begins at once.
    """

    preparation: ClassVar[str] = "loading data"
    beginning: ClassVar[str] = ""
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
        self, packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        """Carry out packs, and tell the watch what becomes of them.

        It returns early where the watch says that the sweep ends.

        Args:
            packs: the packs, those with the most work first. There are none where a search
                algorithm asks for the runs as results come, which this executor cannot.
            datasets: the loaded datasets, by the `source_key` of the data that load
                them. The runs of a search may have others.
            watch: says what is given with each pack, and takes the news.
        """
        known = dict(datasets)
        gpus = self.hardware.gpu_share
        device = "cuda" if gpus else "cpu"

        def host(runs: Sequence[Run]) -> Hosted:
            """Host the cells of runs in this process."""
            of = runs, dataset_of(runs[0], known), watch.options.engine, device
            work = worker_of(*of, self.resident, gpus or 1.0)
            return work, *work.describe()

        for pack in packs:
            if watch.ends_early:
                return
            opened = OpenPack(watch.given(pack), watch.terms, host)
            watch.begin(pack)
            try:
                is_done = False
                while not (is_done or watch.ends_early):
                    news = opened.report()
                    watch.take(news, pack)
                    is_done = news.done
            finally:
                opened.close()
            watch.complete(pack)
