"""Runs a sweep: checks everything, runs what has not ended, and writes the report."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import pandas as pd
from rich.console import Console

from raysafl.core.problem import Dataset
from raysafl.core.text import format_bytes, redacted
from raysafl.models import FlatModel
from raysafl.report.figures.curves import curve_of_run
from raysafl.report.write import write_report
from raysafl.runtime import Hardware
from raysafl.runtime.ray_session import check_fits, ray_session
from raysafl.simulation.run import Run
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import (
    Location,
    StorageError,
    explain_full_disk,
    parse_location,
)
from raysafl.storage.runs_table import write_runs_table
from raysafl.storage.store import Store
from raysafl.sweep.definition import Sweep
from raysafl.sweep.progress import choose_display
from raysafl.sweep.session import FLUSH_SECONDS
from raysafl.sweep.tune import Tuning
from raysafl.tracking import Tracker, default_uri
from raysafl.training.engine_choice import make_engine

# How long the data may load before Ray is started. Most errors in the data of a sweep
# show within this time, and then no Ray is started in vain.
LOADING_SECONDS = 0.2
Datasets = Mapping[str, Dataset]
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """The result of a sweep.

    Args:
        store: the sweep's folder.
        manifest: what the sweep is.
        runs: the table of `runs.parquet`.
        skipped: how many runs needed no new attempt.
        missing: how many runs have not ended.
        tracked: whether MLflow has all results; None if there was nothing new to log.
        seconds: wall time.
    """

    store: Store
    manifest: Manifest
    runs: pd.DataFrame
    skipped: int
    missing: int
    tracked: bool | None
    seconds: float

    @property
    def bad(self) -> pd.DataFrame:
        """The rows of the replicates that failed or diverged, with the reason."""
        return self.runs[
            self.runs["status"].isin([status for status in Status if status.bad])
        ]

    @property
    def ok(self) -> bool:
        """Whether every run ended, and none failed or diverged."""
        return self.bad.empty and not self.missing


@dataclass(frozen=True)
class Runner:
    """Carries out a sweep on Ray and writes the results to a folder.

    Runs that have ended are left out, unless they failed.

    Args:
        sweep: the sweep.
        out: the folder or URI (`s3://...`); by default `results/<name>`, with the scale
            behind the name if it is not `paper`.
        hardware: what a trial runs on.
        address: the address of a running Ray cluster (`auto` for the one of this
            machine); by default Ray is started here.
        resume: whether to go on where an earlier attempt ended. If not, all is run
            again.
        only: axis to label: run only the runs that have these labels.
        quiet: print nothing.
        tracking_uri: the URI of MLflow; by default `$MLFLOW_TRACKING_URI`, or else a
            database beside the sweep.
        track: whether to log to MLflow.
        engine: how gradients are computed: auto, loop, vmap, linear, fused or graph.
        flush_seconds: the time between two checkpoints of a run: the most work that a
            crash loses.
        command: the command that repeats this, for the manifest.
        console: where messages are printed.
    """

    sweep: Sweep
    out: str | Location | None = None
    hardware: Hardware = field(default_factory=Hardware)
    address: str | None = None
    resume: bool = True
    only: Mapping[str, str] = field(default_factory=dict)
    quiet: bool = False
    tracking_uri: str | None = None
    track: bool = True
    engine: str = "auto"
    flush_seconds: float = FLUSH_SECONDS
    command: str = ""
    console: Console = field(default_factory=Console)

    @property
    def store(self) -> Store:
        """The folder of the results."""
        suffix = "" if self.sweep.scale == "paper" else f"-{self.sweep.scale}"
        return Store(parse_location(self.out or f"results/{self.sweep.name}{suffix}"))

    def run(self) -> Outcome:
        """Run the sweep, and write its table and its report.

        Raises:
            ValueError: something is wrong with the sweep, its data, the folder or the
                hardware; nothing was run.
            SweepBusyError: another process is writing to the folder.
            StorageError: the disk is full, or the object store is lost; running the
                sweep again goes on where it was.
        """
        began = time.monotonic()
        store = self.store
        runs = {run.id: run for run in self.sweep.labelled().values()}
        manifest = self.sweep.manifest().replace(command=redacted(self.command))
        if self.only and not self.sweep.is_grid:
            raise ValueError(
                f"sweep '{self.sweep.name}' samples its runs, so there are no labels to choose by"
            )
        chosen = manifest.select(self.only)
        store.create()
        with explain_full_disk(store.path), store.lock():
            self._check_folder(manifest)
            ledger = store.ledger() if self.resume else {}
            done = {i for i, entry in ledger.items() if entry.status.decided}
            todo = {i: runs[i] for i in chosen if i not in done}
            loading = _in_thread(partial(prepare, todo.values(), self.engine))
            if wait([loading], LOADING_SECONDS).done:
                loading.result()

            def ready() -> Datasets:
                """Wait for the data, before anything is deleted or written."""
                datasets = loading.result()
                if not self.resume:
                    store.forget(chosen if self.sweep.is_grid else None)
                sampled = [] if self.sweep.is_grid else store.entries()
                store.write_manifest(manifest.extended(sampled))
                return datasets

            skipped = len(chosen) - len(todo)
            tracked = None
            if todo or not self.sweep.is_grid:
                tracked = self._fit(todo, ready, skipped)
            else:
                ready()
            frame = write_runs_table(store) if tracked is None else store.runs()
            # The report is missing if an earlier driver was killed before it wrote it.
            if not store.file("report.html").is_file():
                write_report(store)
            missing = len(set(chosen) - set(store.ledger()))
            took = time.monotonic() - began
            return Outcome(
                store, store.manifest(), frame, skipped, missing, tracked, took
            )

    def _check_folder(self, manifest: Manifest) -> None:
        """Refuse a folder that holds another sweep, or another scale of this one."""
        if self.store.file("manifest.json").is_file():
            there = self.store.manifest()
            if (there.name, there.scale) != (manifest.name, manifest.scale):
                raise ValueError(
                    f"{self.store.path} holds sweep '{there.name}' at scale '{there.scale}', not "
                    f"'{manifest.name}' at '{manifest.scale}'; choose another folder with --out"
                )

    def _fit(
        self, todo: Mapping[str, Run], ready: Callable[[], Datasets], skipped: int
    ) -> bool:
        """Run the trials, then write the table and the report.

        Ray starts while the data are loaded, and stops while the report is written.

        Returns:
            Whether MLflow has all results.
        """
        tracker = None
        conclude: Callable[[], None] = _nothing
        try:
            with ray_session(self.address):
                check_fits(self.hardware)
                datasets = ready()
                conclude = partial(_write_all, self.store)
                tracker = self._tracker(todo) if self.track else None
                self._trials(todo, datasets, skipped, tracker)
                # The report is written in a thread, so that Ray can stop meanwhile.
                conclude = _in_thread(partial(_write_all, self.store)).result
        except StorageError as error:
            conclude = _nothing
            raise StorageError(
                f"{error}. {_how_to_go_on(self.store, len(todo))}"
            ) from error
        finally:
            try:
                conclude()
            finally:
                if tracker is not None and tracker.waiting and not self.quiet:
                    self._say(
                        f"{tracker.waiting} runs are still to be logged to MLflow"
                    )
                synced = tracker.finish() if tracker is not None else True
        return synced

    def _tracker(self, todo: Mapping[str, Run]) -> Tracker:
        uri = self.tracking_uri or default_uri(self.store.path.parent)
        if self.store.is_remote and not self.quiet:
            self._say(
                f"MLflow's database cannot lie in an object store; it is {redacted(uri)}"
            )
        configs = {i: run.model_dump(mode="json") for i, run in todo.items()}
        return Tracker(self.store, uri, self._say, configs, curve_of_run)

    def _trials(
        self,
        todo: Mapping[str, Run],
        datasets: Datasets,
        skipped: int,
        tracker: Tracker | None,
    ) -> None:
        display = choose_display(self.console, self.quiet)
        tuning = Tuning(
            sweep=self.sweep,
            todo=todo,
            store=self.store,
            hardware=self.hardware,
            engine=self.engine,
            flush_seconds=self.flush_seconds,
            display=display,
            tracker=tracker,
        )
        try:
            display.start(len(todo) or self.sweep.num_samples, skipped)
            tuning.fit(datasets)
        finally:
            display.stop()

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


def _nothing() -> None:
    """Do nothing, as long as there are no results to report."""


def _write_all(store: Store) -> None:
    """Write `runs.parquet`, the table, the report and the figures."""
    write_runs_table(store)
    write_report(store)


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


def prepare(runs: Iterable[Run], engine: str = "auto") -> dict[str, Dataset]:
    """Load each dataset once, and try the partitions, server data and models on it.

    Args:
        runs: the runs to do.
        engine: the engine that computes gradients; "auto" is not tried.

    Returns:
        The datasets, by the `source_key` of the data that load them.

    Raises:
        ValueError: a file is missing, or a part of a run does not fit the data.
    """
    datasets: dict[str, Dataset] = {}
    seen: set[str] = set()
    for run in runs:
        name = run.data.source_key
        if name not in datasets:
            datasets[name] = run.data.load()
        dataset = datasets[name]
        if (split := run.data.to_json()) not in seen:
            run.data.split(dataset, run.seed)
        if (model := name + run.model.to_json()) not in seen:
            flat = FlatModel(run.model, dataset.train.x.shape[1:], dataset.num_classes)
            if engine != "auto":
                make_engine(engine, flat)
        seen |= {split, model}
    return datasets
