"""Runs a sweep: checks everything, runs what has not ended, and writes the report."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rich.console import Console

from raysafl.core.needs import is_installed, need
from raysafl.core.problem import Dataset
from raysafl.core.text import format_bytes, nearest
from raysafl.report.current import is_current
from raysafl.runtime.hardware import Hardware
from raysafl.simulation.run import Run
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import (
    Location,
    StorageError,
    explain_full_disk,
    parse_location,
)
from raysafl.storage.redaction import redacted
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.code.digest import CodeDigests
from raysafl.sweep.code.old_results import runs_to_forget, stored_makers, todays_code
from raysafl.sweep.code.stale import Stale
from raysafl.sweep.definition import Sweep
from raysafl.sweep.execution import (
    Datasets,
    Executor,
    Job,
    execute,
    wait_for_earlier_trials,
)
from raysafl.sweep.executor_choice import Asked
from raysafl.sweep.executor_name import ExecutorName
from raysafl.sweep.keeping import keeping_note
from raysafl.sweep.outcome import Outcome
from raysafl.sweep.packs import seconds_of
from raysafl.sweep.prepare import prepare
from raysafl.sweep.progress import choose_display, plain_console, run_name
from raysafl.sweep.rehearsal import needs_rehearsal, rehearse
from raysafl.sweep.sampling import Known
from raysafl.sweep.session import FLUSH_SECONDS
from raysafl.sweep.stop_rules import rules_of
from raysafl.tracking.choice import Tracking

if TYPE_CHECKING:
    import pandas as pd
    from ray import tune

    from raysafl.tracking.tracker import Tracker

# How long the data may load before Ray is started. Most errors in the data of a sweep
# show within this time, and then no Ray is started in vain.
LOADING_SECONDS = 0.2
# How long the report waits until it is known where MLflow shows the sweep.
TRACKER_SECONDS = 20.0
T = TypeVar("T")


class _Attempt(NamedTuple):
    """What becomes of the results in the folder.

    Args:
        earlier: the manifest that was there before, or None.
        forgotten: the ids of the runs whose results are deleted; None for all results.
        kept: the ids of the runs that have ended and need no new attempt.
    """

    earlier: Manifest | None
    forgotten: list[str] | None
    kept: set[str]


@dataclass(frozen=True)
class Runner:
    """Carries out a sweep and writes the results to a folder.

    Runs that have ended are left out, unless they failed.

    Args:
        sweep: the sweep.
        out: the folder or URI (`s3://...`); by default `results/<name>`, with the scale
            behind the name if it is not `paper`.
        hardware: what a trial runs on.
        address: the address of a running Ray cluster (`auto` for the one of this
            machine); by default Ray is started here.
        executor: who carries out the runs: `here`, this process; `ray`, trials of Ray
            Tune with client actors; `auto` takes `here` if all of the work takes less
            time than Ray takes to start. Results do not depend on it.
        resume: whether to go on where an earlier attempt ended. If not, all is run
            again.
        stale: what becomes of runs whose results were computed before the code of their
            own classes was edited: `rerun`, `keep` or `fail`. An unfinished run goes on
            from no checkpoint of other code.
        only: axis to label: run only the runs that have these labels.
        quiet: print neither progress nor the table and the place of the results.
        tracking_uri: the URI of MLflow; by default `$MLFLOW_TRACKING_URI`, or else a
            database beside the sweep.
        track: how much is logged to MLflow: none, summary, curves or auto.
        engine: how gradients are computed: auto, loop, vmap, linear, fused or graph.
        flush_seconds: the time between two checkpoints of a run: the most work that a
            crash loses.
        try_first: whether a cheap round is tried before anything is run or written, if
            there are components of the user's own classes.
        command: the command that repeats this, for the manifest.
        console: where messages are printed.
        callbacks: callbacks of Tune's, such as its loggers for TensorBoard and W&B. What
            they write of a run is kept in the folder `logs` of the results.
        stop: when a run stops early, as Tune's `RunConfig(stop=)` takes it: a mapping
            from `round`, `test_accuracy` or another number that is reported to the
            value that it has to reach; a function of (trial id, result); or stoppers of
            Tune's. Stopped runs count as ended. A stopper that ends the whole sweep
            leaves the runs unfinished, and running the sweep again continues them.

    With `callbacks` or `stop`, as with a scheduler, every trial has one run instead of a
    pack of many, and every evaluated round is reported to Tune. A sweep of many small
    runs then takes much longer; its results are the same.
    """

    sweep: Sweep
    out: str | Location | None = None
    hardware: Hardware = field(default_factory=Hardware)
    address: str | None = None
    executor: ExecutorName | str = ExecutorName.AUTO
    resume: bool = True
    stale: Stale = Stale.FAIL
    only: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    tracking_uri: str | None = None
    track: Tracking = Tracking.AUTO
    engine: str = "auto"
    flush_seconds: float = FLUSH_SECONDS
    try_first: bool = True
    command: str = ""
    console: Console = field(default_factory=plain_console, repr=False)
    callbacks: "Sequence[tune.Callback]" = ()
    stop: Any = None

    @property
    def store(self) -> Store:
        """The folder of the results."""
        suffix = "" if self.sweep.scale == "paper" else f"-{self.sweep.scale}"
        return Store(parse_location(self.out or f"results/{self.sweep.name}{suffix}"))

    def run(self) -> Outcome:
        """Run the sweep, write its table and its report, and print where they are.

        Raises:
            ValueError: something is wrong with the sweep, its data, the folder, the
                hardware, the callbacks or the rules to stop; nothing was run.
            SweepBusyError: another process is writing to the folder.
            StorageError: the disk is full, or the object store is lost; running the
                sweep again goes on where it was.
        """
        self._callbacks()
        rules_of(self.stop, self.sweep.reported)
        self._asked.check()
        if Tracking(self.track) in (Tracking.SUMMARY, Tracking.CURVES):
            need("mlflow", f"track '{self.track}'")
        if self.only and not self.sweep.is_grid:
            raise ValueError(
                f"sweep '{self.sweep.name}' samples its runs, so there are no labels to choose by"
            )
        outcome = self._run()
        if not self.quiet:
            outcome.print_to(self.console)
        return outcome

    def _run(self) -> Outcome:
        """Run the sweep, and write its table and its report."""
        began = time.monotonic()
        store = self.store
        manifest, runs, example = Known.of(self.sweep)
        manifest = manifest.replace(command=self.command)
        digests = CodeDigests()
        chosen = manifest.select(self.only)
        made = store.create()
        with explain_full_disk(store.path), store.lock(), ExitStack() as refusal:
            refusal.callback(_remove, made)
            # What they write counts, and half of a commit must not be deleted.
            wait_for_earlier_trials(store)
            attempt = self._plan(manifest, chosen, runs, digests)
            todo = {i: runs[i] for i in chosen if i not in attempt.kept}
            looked_at = example or todo
            tried = self._try(looked_at, manifest)
            loading = _in_thread(
                partial(prepare, looked_at.values(), self.engine)
                if tried is None
                else lambda: tried
            )
            if wait([loading], LOADING_SECONDS).done:
                loading.result()

            def ready() -> Datasets:
                """Wait for the data, before anything is deleted or written."""
                datasets = loading.result()
                copies = self.sweep.num_samples if example else 1
                if note := keeping_note(looked_at.values(), datasets, copies):
                    self._note(note)
                # All checks have passed, and what was made is kept.
                refusal.pop_all()
                store.forget(attempt.forgotten)
                earlier = attempt.earlier if self.sweep.is_searched else None
                store.write_manifest(self.sweep.continuing(manifest, earlier))
                return datasets

            skipped = len(chosen) - len(todo)
            tracked = None
            if todo or self.sweep.is_searched:
                tracked = self._fit(todo, example, loading, ready, skipped, digests)
            else:
                ready()
            frame = write_runs_table(store) if tracked is None else store.runs()
            # The table, a claim or the notes may have been edited, rows may have been
            # found damaged, or an earlier driver was killed before it wrote the report.
            if not is_current(store):
                # Imported here, because it draws figures: its import takes seconds.
                from raysafl.report.write import write_report

                write_report(store)
            ended = set(store.ledger())
            return Outcome(
                store=store,
                manifest=store.manifest(),
                runs=frame,
                skipped=skipped,
                missing=len(set(chosen) - ended),
                tracked=tracked,
                seconds=time.monotonic() - began,
                shown=frozenset(
                    ended - attempt.kept if self.sweep.is_searched else todo
                )
                if not self.quiet
                else frozenset(),
            )

    def _try(
        self, runs: Mapping[str, Run], manifest: Manifest
    ) -> dict[str, Dataset] | None:
        """Try a cheap round of runs that hold code of the user's own, see `rehearse`.

        Args:
            runs: the runs to do, by id, or the one that stands for them.
            manifest: has the labels of the runs.

        Returns:
            The datasets of the runs, or None if they were not loaded for this.
        """
        if not self.try_first or not any(map(needs_rehearsal, runs.values())):
            return None
        labels = manifest.labels()
        datasets = prepare(runs.values(), self.engine)
        named = {run_name(labels.get(i, {}), i): run for i, run in runs.items()}
        rehearse(named, datasets, self.engine)
        return datasets

    def _plan(
        self,
        manifest: Manifest,
        chosen: list[str],
        runs: Mapping[str, Run],
        digests: CodeDigests,
    ) -> "_Attempt":
        """Find out which results this attempt keeps, and which it forgets.

        Args:
            manifest: what the sweep is.
            chosen: the ids of the runs to do, as far as they are known.
            runs: the runs that are known, by id.
            digests: computes the digests of the user's classes.

        Raises:
            ValueError: the folder holds another sweep; or there are runs of other code,
                and `stale` is `fail`.
        """
        stale = Stale(self.stale)
        earlier = self._earlier_manifest(manifest)
        if not self.resume:
            return _Attempt(earlier, None if self.sweep.is_searched else chosen, set())
        ledger = self.store.read(unended=False).ledger
        known = manifest.extended(earlier.entries) if earlier else manifest
        labels = known.labels()
        makers = stored_makers(self.store, ledger)
        damaged = {i for i, entry in ledger.items() if entry.status is Status.DAMAGED}
        if not self.sweep.is_searched:
            damaged &= set(chosen)
            # A run that the sweep no longer has is in no table.
            own = {entry.run_id for entry in manifest.entries}
            makers = {i: maker for i, maker in makers.items() if i in own}
        of_chosen = None if self.sweep.is_searched else chosen
        code_of = todays_code(runs, ledger, digests)
        old = runs_to_forget(makers, code_of, stale, of_chosen, labels, self._note)
        for run_id in sorted(damaged):
            name = run_name(labels.get(run_id, {}), run_id)
            self._note(f"{name} is run again: {ledger[run_id].reason}")
        decided = {i for i, entry in ledger.items() if entry.status.decided}
        return _Attempt(earlier, sorted(damaged | old), decided - old)

    def _earlier_manifest(self, manifest: Manifest) -> Manifest | None:
        """Return the manifest that is in the folder, or None if none is.

        Raises:
            ValueError: the folder holds another sweep, or another scale of this one.
        """
        if not self.store.file("manifest.json").is_file():
            return None
        try:
            there = self.store.manifest()
        except ValueError as error:
            self._note(f"{error}. It is written anew")
            return None
        if (there.name, there.scale) != (manifest.name, manifest.scale):
            raise ValueError(
                f"{self.store.path} holds sweep '{there.name}' at scale '{there.scale}', not "
                f"'{manifest.name}' at '{manifest.scale}'; choose another folder with --out"
            )
        return there

    @property
    def _asked(self) -> Asked:
        """What was asked for, on which the executor depends."""
        if self.executor not in list(ExecutorName):
            raise ValueError(
                f"there is no executor '{self.executor}': "
                f"{nearest(str(self.executor), list(ExecutorName))}"
            )
        name = ExecutorName(self.executor)
        return Asked(name, self.sweep, self.hardware, self.address)

    def _executor(
        self,
        todo: Mapping[str, Run],
        example: Mapping[str, Run],
        datasets: Callable[[], dict[str, Dataset]],
    ) -> Executor:
        """Choose who carries out the runs, and say so unless it was asked for.

        Args:
            todo: the runs to do, as far as they are known.
            example: see `Known`.
            datasets: returns their datasets.
        """

        def seconds() -> float:
            if example:
                each = seconds_of(example.values(), datasets())
                return each * self.sweep.num_samples
            return seconds_of(todo.values(), datasets())

        name, why = self._asked.choose(seconds)
        if self.executor == ExecutorName.AUTO and not self.quiet:
            where = "in this process" if name is ExecutorName.HERE else "on Ray"
            self.console.print(f"Runs {where}: {why}", soft_wrap=True)
        # Each is imported where it is needed: Ray and Tune take seconds.
        if name is ExecutorName.HERE:
            from raysafl.sweep.here import Here

            return Here(self.hardware)
        from raysafl.sweep.on_ray.tuning import OnRay

        return OnRay(self.hardware, self.address, self._note)

    def _callbacks(self) -> "list[tune.Callback]":
        """Return the user's callbacks.

        Raises:
            ValueError: one of them is no callback of Tune's.
        """
        if isinstance(self.callbacks, list | tuple) and not self.callbacks:
            return []
        # Imported here, because it imports Tune, whose import takes a second.
        need("ray", "a callback of Tune's")
        from raysafl.sweep.callbacks import check_callbacks

        return check_callbacks(self.callbacks)

    def _fit(
        self,
        todo: Mapping[str, Run],
        example: Mapping[str, Run],
        loading: "Future[dict[str, Dataset]]",
        ready: Callable[[], Datasets],
        skipped: int,
        digests: CodeDigests,
    ) -> bool:
        """Carry out the runs, then write the table and the report.

        Where it is clear that Ray is needed, it starts while the data are loaded. It stops while
        the report is written.

        Returns:
            Whether MLflow has all results.
        """
        tracker = None
        conclude: Callable[[], None] = _nothing
        executor = self._executor(todo, example, loading.result)
        try:
            with executor.started():
                datasets = ready()
                conclude = partial(_write_all, self.store, None)
                tracker = self._tracker(todo)
                conclude = partial(_write_all, self.store, tracker)
                self._carry_out(executor, todo, datasets, skipped, tracker, digests)
                # The report is written in a thread, so that Ray can stop meanwhile.
                conclude = _in_thread(conclude).result
        except StorageError as error:
            conclude = _nothing
            raise _with_advice(error, self.store, len(todo)) from error
        finally:
            try:
                conclude()
            except StorageError as error:
                raise _with_advice(error, self.store, len(todo)) from error
            finally:
                if tracker is not None and tracker.waiting and not self.quiet:
                    self._say(
                        f"{tracker.waiting} runs are still to be logged to MLflow"
                    )
                synced = tracker.finish() if tracker is not None else True
        return synced

    def _tracker(self, todo: Mapping[str, Run]) -> "Tracker | None":
        """Return what logs to MLflow; None if nothing is to be logged."""
        track = Tracking(self.track)
        if track is Tracking.NONE:
            return None
        if not is_installed("mlflow"):
            self._note("MLflow is not installed, so nothing is logged to it")
            return None
        # Imported here, because a sweep that is not tracked needs no MLflow.
        from raysafl.tracking.client import default_uri
        from raysafl.tracking.tracker import Tracker

        uri = self.tracking_uri or default_uri(self.store.path.parent)
        if self.store.is_remote and not self.quiet:
            self._say(
                f"MLflow's database cannot lie in an object store; it is {redacted(uri)}"
            )

        def config_of(run_id: str) -> dict[str, Any]:
            return todo[run_id].model_dump(mode="json") if run_id in todo else {}

        return Tracker(self.store, uri, self._say, track, config_of, _curve_as_png)

    def _carry_out(
        self,
        executor: Executor,
        todo: Mapping[str, Run],
        datasets: Datasets,
        skipped: int,
        tracker: "Tracker | None",
        digests: CodeDigests,
    ) -> None:
        """Carry out the runs, and show how far they are."""
        display = choose_display(self.console, self.quiet)
        job = Job(
            sweep=self.sweep,
            todo=todo,
            store=self.store,
            hardware=self.hardware,
            engine=self.engine,
            flush_seconds=self.flush_seconds,
            display=display,
            tracker=tracker,
            say=self._note,
            digests=digests,
            callbacks=self._callbacks(),
            rules=rules_of(self.stop),
        )
        try:
            display.start(len(todo) or self.sweep.num_samples, skipped)
            _in_thread(_import_report)
            execute(job, executor, datasets)
        finally:
            display.stop()

    def _note(self, message: str) -> None:
        if not self.quiet:
            self._say(message)

    def _say(self, message: str) -> None:
        self.console.print(message, style="yellow", markup=False, soft_wrap=True)


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


def _remove(made: Iterable[Path]) -> None:
    """Remove new folders and files of a sweep that was refused, if nothing is in them."""
    for place in made:
        with suppress(OSError):
            place.rmdir() if place.is_dir() else place.unlink()


def _nothing() -> None:
    """Do nothing, as long as there are no results to report."""


def _import_report() -> None:
    """Import the report, which takes seconds and is needed when the trials have ended."""
    import raysafl.report.write  # noqa: F401


def _curve_as_png(rows: "pd.DataFrame", title: str, manifest: Manifest) -> bytes:
    """Draw the figure of a run that MLflow shows."""
    from raysafl.report.figures.curves import curve_of_run

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


def _with_advice(error: StorageError, store: Store, planned: int) -> StorageError:
    """Return an error that says how to go on, too."""
    return StorageError(f"{error}. {_how_to_go_on(store, planned)}")


def _how_to_go_on(store: Store, planned: int) -> str:
    """Say how to go on when results could not be written, and the room that is needed."""
    goes_on = "The same command goes on where it was"
    # The store may be lost, so it is not asked what it holds.
    if store.is_remote:
        return goes_on
    ended = len(store.ledger())
    if not ended:
        return goes_on
    return f"{goes_on}; {planned} runs need about {format_bytes(planned * store.size() / ended)}"
