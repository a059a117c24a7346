"""Carries out the runs of an attempt that have not ended, or says what it would do.

An executor carries out packs: `Here` in this process, or `OnRay` by trials of Ray Tune. The two
have the same methods.
"""

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from raysafl.cluster.hardware import Hardware
from raysafl.core.component import is_users_class
from raysafl.core.needs import is_installed
from raysafl.core.problem import Dataset
from raysafl.core.text import count
from raysafl.simulation.run import Run
from raysafl.storage.manifest import run_name
from raysafl.storage.paths import StorageError
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.choices import ExecutorName
from raysafl.sweep.more_rounds import MoreRounds
from raysafl.sweep.packs import Pack, form_packs, seconds_of
from raysafl.sweep.prepare import prepare
from raysafl.sweep.runner import Runner, ray_runs
from raysafl.sweep.simulate import torch_threads
from raysafl.sweep.watch import Watch
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    from raysafl.sweep.forecast import Forecast
    from raysafl.sweep.here import Here
    from raysafl.sweep.on_ray.tuning import OnRay
    from raysafl.tracking.tracker import Tracker

# How long the data may load before Ray is started. Most errors in the data of a sweep
# show within this time, and then no Ray is started in vain.
LOADING_SECONDS = 0.2
# How long the report waits until it is known where MLflow shows the sweep.
TRACKER_SECONDS = 20.0
# The seconds that Ray and the processes of the first trial take to start and to end on
# two cores.
STARTING_RAY_SECONDS = 8.0
Datasets = Mapping[str, Dataset]
T = TypeVar("T")


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


@torch_threads(1)
def carry_out(attempt: Attempt, refusal: ExitStack) -> None:
    """Carry out the runs that an attempt does, then write the table and the report.

    Where it is clear that Ray is needed, it starts while the data are loaded. It stops while
    the report is written.

    Args:
        attempt: the attempt, which has been planned.
        refusal: what is undone if the attempt is refused.
    """
    display = attempt.display
    options = attempt.options
    display.enter("loading data")
    loading = _load(attempt)
    executor = choose_executor(options, lambda: _seconds(attempt, loading.result()))
    tracker = None
    display.enter(executor.preparation)
    try:
        with executor.started():
            display.enter("loading data")
            datasets = loading.result()
            more_rounds = MoreRounds(attempt)
            attempt.begin(refusal)
            for text in filter(None, (attempt.seeds_there, str(more_rounds))):
                options.note(text)
            tracker = _tracker(attempt)
            watch = Watch(attempt, tracker, more_rounds)
            unended = len(attempt.unended)
            total = unended or attempt.sweep.num_samples
            display.start(total, len(attempt.chosen) - unended, executor.beginning)
            # It is needed when the trials have ended, and its import takes seconds.
            _in_thread(partial(import_module, "raysafl.report.write"))
            try:
                execute(watch, executor, datasets)
            except KeyboardInterrupt:
                if display.running or display.done:
                    _write_all(attempt.store, tracker)
                raise
            display.enter("writing the report")
            # The report is written in a thread, so that Ray can stop meanwhile.
            writing = _in_thread(partial(_write_all, attempt.store, tracker))
        writing.result()
    except StorageError as error:
        raise StorageError(f"{error}. The same command goes on where it was") from error
    finally:
        if tracker is not None:
            if tracker.waiting:
                waiting = count(tracker.waiting, "run")
                options.note(f"still to be logged to MLflow: {waiting}")
            display.enter("logging to MLflow")
            tracker.finish()


def execute(watch: Watch, executor: "Here | OnRay", datasets: Datasets) -> None:
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


def choose_executor(options: Runner, seconds: Callable[[], float]) -> "Here | OnRay":
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


@torch_threads(1)
def forecast(attempt: Attempt) -> "Forecast":
    """Say what an attempt would do, without writing anything; see `Runner.forecast`."""
    from raysafl.sweep.forecast import foretell

    attempt.plan()
    with closing(attempt.display):
        datasets = _load(attempt).result()
    return foretell(attempt, datasets, MoreRounds(attempt))


def _seconds(attempt: Attempt, datasets: dict[str, Dataset]) -> float:
    """Return about how long the work takes on one core."""
    copies = attempt.sweep.num_samples if attempt.example else 1
    return copies * seconds_of(attempt.looked_at.values(), datasets)


def _load(attempt: Attempt) -> "Future[dict[str, Dataset]]":
    """Try the user's own classes, if there are any, and begin to load the data."""
    runs = attempt.looked_at
    loaded: dict[str, Dataset] = {}
    parts = (part for run in runs.values() for part in run.components())
    if attempt.options.try_first and any(is_users_class(type(part)) for part in parts):
        # Imported here, because it is needed seldom.
        from raysafl.sweep.preflight import preflight

        labels = attempt.manifest.labels()
        named = {run_name(labels.get(i, {}), i): runs[i] for i in runs}
        loaded = preflight(named, attempt.display)
    loading = _in_thread(
        partial(prepare, runs.values(), attempt.options.engine, loaded)
    )
    # Whatever is the user's own is right as a whole before Ray starts.
    if wait([loading], None if loaded else LOADING_SECONDS).done:
        loading.result()
    return loading


def _tracker(attempt: Attempt) -> "Tracker | None":
    """Return what logs to MLflow; None if nothing is to be logged."""
    options = attempt.options
    track = Tracking(options.track)
    if track is Tracking.NONE:
        return None
    if not is_installed("mlflow"):
        options.note("MLflow is not installed, so nothing is logged to it")
        return None
    # Imported here, because a sweep that is not tracked needs no MLflow.
    from raysafl.tracking.client import default_uri
    from raysafl.tracking.tracker import Tracker

    uri = options.tracking_uri or default_uri(attempt.store.path.parent)
    return Tracker(attempt.store, uri, options.say, track)


def _write_all(store: Store, tracker: "Tracker | None") -> None:
    """Join the parts, and write `runs.parquet`, the report and its figures."""
    from raysafl.report.write import write_report

    store.rewrite()
    write_runs_table(store)
    # The report links to MLflow.
    if tracker is not None:
        tracker.wait_until_opened(TRACKER_SECONDS)
    write_report(store)


def _in_thread(work: Callable[[], T]) -> Future[T]:
    """Run `work` in a daemon thread.

    A ThreadPoolExecutor is joined at exit, so Ctrl-C would wait for a slow download.
    """
    future = Future[T]()

    def run_work() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run_work, daemon=True).start()
    return future
