"""The cells of a sweep as packs, whoever carries these out."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from raysafl.cluster.hardware import Hardware
from raysafl.cluster.provenance import commit, package_digest
from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run
from raysafl.storage.paths import StorageError
from raysafl.storage.store import Store
from raysafl.sweep.code import CodeDigests
from raysafl.sweep.definition import Sweep
from raysafl.sweep.measures import Measures
from raysafl.sweep.more_rounds import MoreRounds
from raysafl.sweep.open_pack import GivenPack, Terms
from raysafl.sweep.options import Options
from raysafl.sweep.packs import Pack, form_packs
from raysafl.sweep.progress import Display
from raysafl.sweep.watch import Watch

if TYPE_CHECKING:
    from raysafl.tracking.tracker import Tracker

# Seconds between two reports of a pack, unless every evaluated round is reported, or
# checkpoints are to be made more often.
REPORT_SECONDS = 2.0
Datasets = Mapping[str, Dataset]


class Room(NamedTuple):
    """What an executor has room for.

    Args:
        packs: how many packs it carries out at the same time.
        memory: the bytes of memory that each of these has.
    """

    packs: int
    memory: float


def room_on(
    nodes: Sequence[Mapping[str, float]], hardware: Hardware, gpu_memory: int | None
) -> Room:
    """Return what the nodes of a Ray have room for.

    Args:
        nodes: what each node has of every resource.
        hardware: what a trial runs on.
        gpu_memory: the bytes of the smallest GPU; None if none is needed or known.
    """
    memory = hardware.memory_of_trial(nodes)
    if gpu_memory is not None:
        memory = min(memory, gpu_memory * hardware.gpu_share)
    return Room(hardware.trials_at_once(nodes), memory)


class Executor(Protocol):
    """Carries out packs: in this process, or as trials of Ray Tune.

    Attributes:
        preparation: what `started` does, for the display.
        beginning: what is done until the first pack begins; empty if it begins at once.
    """

    preparation: ClassVar[str]
    beginning: ClassVar[str]

    def started(self) -> AbstractContextManager[None]:
        """Get ready for the block, and leave nothing behind.

        Raises:
            ValueError: what is asked for is not there.
        """

    def room(self) -> Room:
        """Return what there is room for, once it is started."""

    def carry_out(
        self, job: "Job", packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        """Carry out packs, and tell the watch what becomes of them.

        It returns early where the watch says that the sweep ends.

        Args:
            job: the sweep, and how it is carried out.
            packs: the packs, those with the most work first. There are none where a search
                algorithm asks for the runs as results come.
            datasets: the loaded datasets, by the `source_key` of the data that load
                them. The runs of a search may have others.
            watch: takes the news.

        Raises:
            ValueError: the search algorithm takes no search space.
        """


@dataclass(frozen=True)
class Job:
    """A sweep that is being carried out.

    Args:
        options: what was asked for.
        store: the sweep's folder.
        todo: the cells to do of each run, as runs of one seed each, by the run's id; empty
            if a search algorithm asks for the runs.
        digests: the digests of the user's classes.
        display: shows the progress.
        tracker: logs to MLflow; None for a sweep that is not tracked.
        more_rounds: which cells go on from shorter ones.
    """

    options: Options
    store: Store
    todo: Mapping[str, Sequence[Run]]
    digests: CodeDigests
    display: Display
    tracker: "Tracker | None"
    more_rounds: MoreRounds

    @property
    def sweep(self) -> Sweep:
        """The sweep."""
        return self.options.sweep

    @cached_property
    def goal(self) -> tuple[str, str]:
        """The metric that searchers and schedulers go by, and its mode."""
        return self.store.manifest().goal or Measures().goal

    @property
    def stopped_by(self) -> str:
        """What may stop a run early, for the reason in its ledger entry."""
        parts = {"the scheduler": self.sweep.scheduler, "`stop`": self.options.stop}
        return " or ".join(name for name, part in parts.items() if part)

    @property
    def terms(self) -> Terms:
        """What holds for all packs."""
        seconds = min(REPORT_SECONDS, self.options.flush_seconds)
        return Terms(
            commit=commit(),
            package=package_digest() if self.options.address else "",
            report_seconds=0.0 if self.options.is_one_by_one else seconds,
            flush_seconds=self.options.flush_seconds,
            engine=self.options.engine,
            metric=self.goal[0],
            keep_states=self.options.keep_states,
        )

    def given(self, pack: Pack) -> GivenPack:
        """Return what whoever carries out a pack is given, with where its cells were."""
        code = {run.id: self.digests.of_run(run) for run in pack.runs}
        cells = {run.id for run in pack.runs}
        found = []
        for file in self.store.files("open"):
            head = self.store.checkpoint(file, with_state=False)
            if head is None or not head.cells.keys() & cells:
                continue
            # The cells begin anew if their states are damaged.
            if (whole := self.store.checkpoint(file)) is not None:
                found.append(whole.to_bytes())
        found += self.more_rounds.checkpoints(pack.runs)
        return GivenPack(pack, code, found)


def execute(job: Job, executor: Executor, datasets: Datasets) -> None:
    """Carry out all runs of a sweep by an executor that was started before.

    A pack of several runs that could not be carried out is tried in halves, down to
    single runs, when the other packs have ended.

    Args:
        job: the sweep, and how it is carried out.
        executor: carries out the packs.
        datasets: the loaded datasets, by the `source_key` of the data that load them.

    Raises:
        StorageError: results could not be written any more; the other runs have not
            run.
    """
    display = job.display
    entries = job.store.manifest().entries
    watch = Watch(
        job.store,
        display,
        job.tracker,
        entries,
        job.digests.of_run,
        job.stopped_by,
    )
    packs: list[Pack] = []
    if job.sweep.is_searched:
        display.planned = job.sweep.num_samples
        executor.carry_out(job, [], datasets, watch)
    else:
        packs = packs_of(job, job.todo.values(), executor.room(), datasets)
    while packs:
        display.planned = display.finished + sum(pack.work for pack in packs)
        executor.carry_out(job, packs, datasets, watch)
        unfinished = [] if watch.ends_early else watch.unfinished
        packs = [half for pack in unfinished for half in pack.halves(watch.ended)]
        watch.unfinished = []
    if watch.lost:
        raise StorageError(watch.lost)


def packs_of(
    job: Job, todo: Iterable[Sequence[Run]], room: Room, datasets: Datasets
) -> list[Pack]:
    """Form packs of cells that an executor has room for; see `form_packs`."""
    if job.options.is_one_by_one:
        return [
            Pack(tuple(cells), sum(cell.rounds for cell in cells)) for cells in todo
        ]
    return form_packs(todo, datasets, job.options.hardware, room.packs, room.memory)


@contextmanager
def scratch(store: Store) -> Iterator[Path]:
    """Provide a folder for Tune in the sweep's folder.

    Tune and callbacks write files into it. What callbacks wrote is copied to `logs/` before
    (`keep_logs`); then it is deleted. So is what other processes are told (`write_heartbeat`).
    """
    folder = store.path / "tune"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
