"""The cells of a sweep as packs, whoever carries these out."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar, NamedTuple, Protocol

from raysafl.cluster.hardware import Hardware
from raysafl.core.needs import is_installed
from raysafl.core.problem import Dataset
from raysafl.simulation.run import Run
from raysafl.storage.paths import StorageError
from raysafl.sweep.choices import ExecutorName
from raysafl.sweep.packs import Pack, form_packs
from raysafl.sweep.runner import Runner, ray_runs
from raysafl.sweep.watch import Watch

# The seconds that Ray and the processes of the first trial take to start and to end on
# two cores.
STARTING_RAY_SECONDS = 8.0
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
        self, packs: Sequence[Pack], datasets: Datasets, watch: Watch
    ) -> None:
        """Carry out packs, and tell the watch what becomes of them.

        It returns early where the watch says that the sweep ends.

        Args:
            packs: the packs, those with the most work first. There are none where a search
                algorithm asks for the runs as results come.
            datasets: the loaded datasets, by the `source_key` of the data that load
                them. The runs of a search may have others.
            watch: says what is given with each pack, and takes the news.

        Raises:
            ValueError: the search algorithm takes no search space.
        """


def choose_executor(options: Runner, seconds: Callable[[], float]) -> Executor:
    """Return who carries out the runs, and say so unless it was asked for; see `choose`."""
    name, why = choose(options, seconds)
    if options.executor == ExecutorName.AUTO and not options.quiet:
        where = "in this process" if name is ExecutorName.HERE else "on Ray"
        options.console.print(f"Runs {where}: {why}", soft_wrap=True)
    # Each is imported where it is needed: Ray and Tune take seconds.
    if name is ExecutorName.HERE:
        from raysafl.cluster.gpus import num_gpus, used_note
        from raysafl.sweep.here import Here

        hardware = options.hardware.where_there_are(count := num_gpus())
        if note := used_note(hardware, 1, count):
            options.note(note)
        return Here(hardware)
    from raysafl.sweep.on_ray.tuning import OnRay

    return OnRay(options.hardware, options.address, options.note, options.wait_nodes)


def choose(options: Runner, seconds: Callable[[], float]) -> tuple[ExecutorName, str]:
    """Return the name of who carries out the sweep, and why.

    Args:
        options: what was asked for.
        seconds: returns about how long the work takes on one core. It is called only if
            the choice depends on it.
    """
    if options.executor != ExecutorName.AUTO:
        return ExecutorName(options.executor), "it was asked for"
    if not is_installed("ray"):
        return ExecutorName.HERE, "Ray is not installed"
    if why := options.only_ray:
        return ExecutorName.RAY, why
    if options.hardware.gpu_share:
        return ExecutorName.RAY, "GPUs are asked for"
    if ray_runs():
        return ExecutorName.RAY, "this program has started Ray"
    # No number: it is estimated without any measurement, and grows more wrong with the work.
    than = "than Ray takes to start, by a rough estimate"
    if seconds() < STARTING_RAY_SECONDS:
        return ExecutorName.HERE, f"the work takes less time {than}"
    return ExecutorName.RAY, f"the work takes longer {than}"


def execute(watch: Watch, executor: Executor, datasets: Datasets) -> None:
    """Carry out all runs of a sweep by an executor that was started before.

    A pack of several runs that could not be carried out is tried in halves, down to
    single runs, when the other packs have ended.

    Args:
        watch: knows what is to be done, and takes the news.
        executor: carries out the packs.
        datasets: the loaded datasets, by the `source_key` of the data that load them.

    Raises:
        StorageError: results could not be written any more; the other runs have not
            run.
    """
    display = watch.display
    is_searched = watch.sweep.is_searched
    display.planned = watch.sweep.num_samples
    room = executor.room()
    packs = [] if is_searched else packs_of(watch, watch.todo, room, datasets)
    while packs or is_searched:
        if packs:
            display.planned = display.finished + sum(pack.work for pack in packs)
        try:
            executor.carry_out(packs, datasets, watch)
        finally:
            # What callbacks wrote there was copied to `logs/` before; other processes are
            # told nothing more (`write_heartbeat`).
            shutil.rmtree(watch.store.path / "tune", ignore_errors=True)
        if is_searched or watch.ends_early:
            break
        packs = [half for pack in watch.unfinished for half in pack.halves(watch.ended)]
        watch.unfinished = []
    if watch.lost:
        raise StorageError(watch.lost)


def packs_of(
    watch: Watch, todo: Iterable[Sequence[Run]], room: Room, datasets: Datasets
) -> list[Pack]:
    """Form packs of cells that an executor has room for; see `form_packs`."""
    if watch.options.is_one_by_one:
        return [
            Pack(tuple(cells), sum(cell.rounds for cell in cells)) for cells in todo
        ]
    hardware = watch.options.hardware
    return form_packs(todo, datasets, hardware, room.packs, room.memory)
