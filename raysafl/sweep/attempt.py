"""One attempt at a sweep: what is to run, with what, and what is written in the end."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from raysafl.core.needs import is_installed
from raysafl.core.problem import Dataset
from raysafl.core.text import count, format_bytes
from raysafl.report.current import is_current
from raysafl.simulation.run import Run
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest, run_name
from raysafl.storage.paths import StorageError, explain_full_disk
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.sealed import OpenState
from raysafl.storage.store import Store, remove_empty
from raysafl.sweep.code.digest import CodeDigests
from raysafl.sweep.code.old_results import runs_to_forget
from raysafl.sweep.code.stale import Stale
from raysafl.sweep.execution import Job, execute
from raysafl.sweep.executor_choice import choose_executor
from raysafl.sweep.forecast import Forecast, foretell
from raysafl.sweep.growth import Growth, reuse
from raysafl.sweep.keeping import keeping_note
from raysafl.sweep.options import Options, command_of_script
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.packs import seconds_of
from raysafl.sweep.preflight import preflight, trials_of
from raysafl.sweep.prepare import prepare
from raysafl.sweep.progress import choose_display
from raysafl.sweep.sampling import known_runs
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    import pandas as pd

    from raysafl.tracking.tracker import Tracker

# How long the data may load before Ray is started. Most errors in the data of a sweep
# show within this time, and then no Ray is started in vain.
LOADING_SECONDS = 0.2
# How long the report waits until it is known where MLflow shows the sweep.
TRACKER_SECONDS = 20.0
T = TypeVar("T")


class Attempt:
    """Carries out what an earlier attempt has not ended, and writes the report.

    Args:
        options: what was asked for, and was checked.

    Raises:
        ValueError: a run of the sweep cannot be made, or no run was chosen.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.sweep = options.sweep
        self.store = options.store
        self.digests = CodeDigests()
        known, self.runs, self.example = known_runs(self.sweep)
        self.manifest = known.replace(command=options.command or command_of_script())
        only = {axis: str(label) for axis, label in options.only.items()}
        self.chosen = self.manifest.select(only)
        # The manifest that was in the folder before, or None.
        self.earlier: Manifest | None = None
        # The ids of the runs whose results are deleted; None for all results.
        self.forgotten: set[str] | None = None
        # The ids of the runs that have ended and need no new attempt.
        self.kept: set[str] = set()
        self.todo: dict[str, Run] = {}
        self.display = choose_display(options.console, options.quiet)

    def run(self) -> Outcome:
        """Run the sweep, and write its table and its report; see `Runner.run`."""
        began = time.monotonic()
        store = self.store
        made = store.create()
        with (
            closing(self.display),
            explain_full_disk(store.path),
            store.lock(),
            ExitStack() as refusal,
        ):
            refusal.callback(remove_empty, made)
            self._plan()
            self.todo = {i: self.runs[i] for i in self.chosen if i not in self.kept}
            if is_new := bool(self.todo or self.sweep.is_searched):
                self.display.enter("loading data")
            loading = self._load()
            tracked = None
            if is_new:
                tracked = self._carry_out(loading, refusal)
            else:
                self._begin(loading, refusal)
            frame = write_runs_table(store) if tracked is None else store.runs()
            # The table, a claim or the notes may have been edited, rows may have been
            # found damaged, or an earlier driver was killed before it wrote the report.
            if not is_current(store):
                # Imported here, because it draws figures: its import takes seconds.
                from raysafl.report.write import write_report

                self.display.enter("writing the report")
                write_report(store)
            ended = set(store.ledger())
            new = ended - self.kept if self.sweep.is_searched else self.todo
            missing = len(set(self.chosen) - ended)
            if self.sweep.is_searched and self.display.is_cut:
                missing = self.display.total - self.display.done
            return Outcome(
                store=store,
                manifest=store.manifest(),
                runs=frame,
                skipped=len(self.chosen) - len(self.todo),
                missing=missing,
                tracked=tracked,
                seconds=time.monotonic() - began,
                shown=frozenset(() if self.options.quiet else new),
            )

    def forecast(self) -> Forecast:
        """Say what `run` would do, without writing anything; see `Runner.forecast`."""
        self._plan()
        self.todo = {i: self.runs[i] for i in self.chosen if i not in self.kept}
        with closing(self.display):
            datasets = self._load().result()
        growth = self._reused(lambda run_id, content: None)
        finished = len(self.chosen) - len(self.todo)
        return foretell(self.options, self.todo, self.begun, datasets, finished, growth)

    # Before anything runs

    def _plan(self) -> None:
        """Find out which results this attempt keeps, and which it forgets.

        Raises:
            ValueError: the folder holds another sweep; or there are runs of other code,
                and `stale` is `fail`.
        """
        stale = Stale(self.options.stale)
        searched = self.sweep.is_searched
        self._read_earlier_manifest()
        if not self.options.resume:
            self.forgotten = None if searched else set(self.chosen)
            return
        ledger = self.store.read(unended=False).ledger
        known = self.manifest.extended(self.earlier.entries if self.earlier else [])
        labels = known.labels()
        damaged = {i for i, entry in ledger.items() if entry.status is Status.DAMAGED}
        if not searched:
            damaged &= set(self.chosen)
        say = self.options.note
        old = runs_to_forget(
            self.store, ledger, self.runs, self.digests, stale, self.chosen, labels, say
        )
        for run_id in sorted(damaged):
            name = run_name(labels.get(run_id, {}), run_id)
            say(f"{name} is run again: {ledger[run_id].reason}")
        self.forgotten = damaged | old
        self.kept = {i for i, entry in ledger.items() if entry.status.decided} - old

    def _read_earlier_manifest(self) -> None:
        """Read the manifest that is in the folder, if there is one.

        Raises:
            ValueError: the folder holds another sweep, or another scale of this one.
        """
        if not self.store.file("manifest.json").is_file():
            return
        try:
            there = self.store.manifest()
        except ValueError as error:
            self.options.note(f"{error}, and does so now")
            return
        own = self.manifest
        if (there.name, there.scale) != (own.name, own.scale):
            raise ValueError(
                f"{self.store.path} holds sweep '{there.name}' at scale '{there.scale}', not "
                f"'{own.name}' at '{own.scale}'; choose another folder with --out"
            )
        self.earlier = there

    @property
    def _looked_at(self) -> dict[str, Run]:
        """The runs to do, by id, or the one that stands for them."""
        return self.example or self.todo

    def _load(self) -> "Future[dict[str, Dataset]]":
        """Try the user's own classes, if there are any, and begin to load the data."""
        runs = self._looked_at
        labels = self.manifest.labels()
        trials = trials_of({run_name(labels.get(i, {}), i): runs[i] for i in runs})
        loaded: dict[str, Dataset] = {}
        if trials and self.options.try_first:
            loaded = preflight(trials, self.display)
        work = partial(prepare, runs.values(), self.options.engine, loaded)
        loading = _in_thread(work)
        # Whatever is the user's own is right as a whole before Ray starts.
        if wait([loading], None if loaded else LOADING_SECONDS).done:
            loading.result()
        return loading

    def _begin(
        self, loading: "Future[dict[str, Dataset]]", refusal: ExitStack
    ) -> dict[str, Dataset]:
        """Wait for the data, then delete what is not kept and write the manifest."""
        datasets = loading.result()
        copies = self.sweep.num_samples if self.example else 1
        if note := keeping_note(self._looked_at.values(), datasets, copies):
            self.options.note(note)
        # All checks have passed, and what was made is kept.
        refusal.pop_all()
        self.store.forget(self.forgotten)
        if told := str(self._reused(self.store.flush)):
            self.options.note(told)
        is_continued = self.sweep.is_searched and self.options.resume
        earlier = self.earlier if is_continued else None
        self.store.write_manifest(self.sweep.continuing(self.manifest, earlier))
        return datasets

    def _reused(self, save: Callable[[str, OpenState], None]) -> Growth:
        """Reuse replicates of runs that the sweep has no more; see `reuse`."""
        # A rule would stop new replicates by the last rounds of the reused ones.
        if not self.options.resume or self.options.is_one_by_one:
            return Growth()
        return reuse(
            self.store, self.todo, self.begun, set(self.runs), self.digests, save
        )

    @property
    def begun(self) -> set[str]:
        """The ids of the runs that go on from a file: not from one that is deleted."""
        return set(self.store.open_runs()) - (self.forgotten or set())

    # While runs are carried out

    def _carry_out(
        self, loading: "Future[dict[str, Dataset]]", refusal: ExitStack
    ) -> bool:
        """Carry out the runs, then write the table and the report.

        Where it is clear that Ray is needed, it starts while the data are loaded. It stops while
        the report is written.

        Returns:
            Whether MLflow has all results.
        """
        tracker = None
        conclude: Callable[[], None] = _nothing
        display = self.display
        executor = choose_executor(self.options, lambda: self.seconds(loading.result()))
        try:
            display.enter(executor.preparation)
            with executor.started():
                display.enter("loading data")
                datasets = self._begin(loading, refusal)
                conclude = partial(_write_all, self.store, None)
                tracker = self._tracker()
                conclude = partial(_write_all, self.store, tracker)
                job = Job(
                    self.options, self.store, self.todo, self.digests, display, tracker
                )
                skipped = len(self.chosen) - len(self.todo)
                display.start(len(self.todo) or self.sweep.num_samples, skipped)
                # It is needed when the trials have ended, and its import takes seconds.
                _in_thread(partial(import_module, "raysafl.report.write"))
                execute(job, executor, datasets)
                display.enter("writing the report")
                # The report is written in a thread, so that Ray can stop meanwhile.
                conclude = _in_thread(conclude).result
        except StorageError as error:
            conclude = _nothing
            raise self._with_advice(error) from error
        except KeyboardInterrupt:
            if not (display.running or display.done):
                conclude = _nothing
            raise
        finally:
            try:
                conclude()
            except StorageError as error:
                raise self._with_advice(error) from error
            finally:
                synced = tracker is None or self._finish(tracker)
        return synced

    def _finish(self, tracker: "Tracker") -> bool:
        """Log what is still to be logged; return whether MLflow has all results."""
        if tracker.waiting:
            waiting = count(tracker.waiting, "run")
            self.options.note(f"still to be logged to MLflow: {waiting}")
        self.display.enter("logging to MLflow")
        return tracker.finish()

    def seconds(self, datasets: dict[str, Dataset]) -> float:
        """Return about how long the work takes on one core."""
        copies = self.sweep.num_samples if self.example else 1
        return copies * seconds_of(self._looked_at.values(), datasets)

    def _tracker(self) -> "Tracker | None":
        """Return what logs to MLflow; None if nothing is to be logged."""
        options = self.options
        track = Tracking(options.track)
        if track is Tracking.NONE:
            return None
        if not is_installed("mlflow"):
            options.note("MLflow is not installed, so nothing is logged to it")
            return None
        # Imported here, because a sweep that is not tracked needs no MLflow.
        from raysafl.tracking.client import default_uri
        from raysafl.tracking.tracker import Tracker

        uri = options.tracking_uri or default_uri(self.store.path.parent)
        if self.store.is_remote:
            options.note(
                f"MLflow's database cannot lie in an object store; it is {uri}"
            )

        return Tracker(self.store, uri, options.say, track, _curve_as_png)

    def _with_advice(self, error: StorageError) -> StorageError:
        """Return an error that says how to go on, too, and the room that is needed."""
        text = f"{error}. The same command goes on where it was"
        # The store may be lost, so it is not asked what it holds.
        if not self.store.is_remote and (ended := len(self.store.ledger())):
            planned = len(self.todo)
            needed = format_bytes(planned * self.store.size() / ended)
            text += f"; {planned} runs need about {needed}"
        return StorageError(text)


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


def _nothing() -> None:
    """Do nothing, as long as there are no results to report."""


def _curve_as_png(rows: "pd.DataFrame", title: str, manifest: Manifest) -> bytes:
    """Draw the figure of a run that MLflow shows."""
    from raysafl.report.figures.lines import curve_of_run

    return curve_of_run(rows, title, manifest)


def _write_all(store: Store, tracker: "Tracker | None") -> None:
    """Compact the results, and write `runs.parquet`, the report and its figures."""
    from raysafl.report.write import write_report

    store.compact()
    write_runs_table(store)
    # The report links to MLflow.
    if tracker is not None:
        tracker.wait_until_opened(TRACKER_SECONDS)
    write_report(store)
