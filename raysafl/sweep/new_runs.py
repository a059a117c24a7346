"""Carries out the runs of an attempt that have not ended, or says what it would do."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from raysafl.core.needs import is_installed
from raysafl.core.problem import Dataset
from raysafl.core.text import count
from raysafl.core.users_parts import is_users_class
from raysafl.storage.manifest import run_name
from raysafl.storage.paths import StorageError
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.attempt import Attempt
from raysafl.sweep.execution import choose_executor, execute
from raysafl.sweep.more_rounds import MoreRounds
from raysafl.sweep.packs import seconds_of
from raysafl.sweep.prepare import prepare
from raysafl.sweep.simulate import torch_threads
from raysafl.sweep.watch import Watch
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    from raysafl.sweep.forecast import Forecast
    from raysafl.tracking.tracker import Tracker

# How long the data may load before Ray is started. Most errors in the data of a sweep
# show within this time, and then no Ray is started in vain.
LOADING_SECONDS = 0.2
# How long the report waits until it is known where MLflow shows the sweep.
TRACKER_SECONDS = 20.0
T = TypeVar("T")


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
