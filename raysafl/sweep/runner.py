"""Run a sweep: check everything first, run what is not finished, then collect and report."""

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
from raysafl.storage.paths import Location, StorageError, explain_full_disk, parse_location
from raysafl.storage.runs_table import collect
from raysafl.storage.store import Store
from raysafl.sweep.definition import Sweep
from raysafl.sweep.progress import display
from raysafl.sweep.session import FLUSH_SECONDS
from raysafl.sweep.tune import Tuning
from raysafl.tracking import Tracker, default_uri
from raysafl.training.engine_choice import make_engine

SOON = 0.2  # seconds in which most that is wrong with a sweep's data shows, before Ray starts
Datasets = Mapping[str, Dataset]
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What came of a sweep."""

    store: Store
    manifest: Manifest
    runs: pd.DataFrame  # runs.parquet
    skipped: int  # runs that were finished before
    missing: int  # runs that have not ended
    tracked: bool | None  # None: nothing new to track
    seconds: float

    @property
    def bad(self) -> pd.DataFrame:
        """The runs that failed or diverged, with the reason."""
        return self.runs[self.runs["status"].isin([status for status in Status if status.bad])]

    @property
    def ok(self) -> bool:
        """Whether every run ended, and none failed or diverged."""
        return self.bad.empty and not self.missing


@dataclass(frozen=True)
class Runner:
    """Runs what is not finished of a sweep, on Ray, and writes its results to a folder.

    out             the folder or URI (s3://...); default `results/<name>`, the scale behind it
                    if not "paper"
    hardware        what a trial runs on
    address         a running Ray cluster ("auto": the one here); default: Ray is started here
    resume          go on where an earlier try ended; False: run everything anew
    only            axis to value: run only what bears these labels
    quiet           print nothing
    tracking_uri    MLflow; default `$MLFLOW_TRACKING_URI`, else sqlite beside the sweep
    track           log to MLflow at all
    engine          how gradients are computed: auto, loop, vmap, linear, fused or graph
    flush_seconds   how much work a crash may lose
    command         how to repeat this, for the record
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
        """Run the sweep.

        Raises:
            ValueError: something is wrong with the sweep, its data, the folder or the hardware;
                nothing was run.
            SweepBusyError: another process is writing to the folder.
            StorageError: the disk is full, or the object store is lost; the same again goes on.
        """
        began, store = time.monotonic(), self.store
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
            loading = _beside(partial(prepare, todo.values(), self.engine))
            if wait([loading], SOON).done:
                loading.result()

            def ready() -> Datasets:
                """The data; only when they are there and right is anything deleted or written."""
                datasets = loading.result()
                if not self.resume:
                    store.forget(chosen if self.sweep.is_grid else None)
                sampled = [] if self.sweep.is_grid else store.entries()
                store.write_manifest(manifest.extended(sampled))
                return datasets

            skipped, tracked = len(chosen) - len(todo), None
            if todo or not self.sweep.is_grid:
                tracked = self._fit(todo, ready, skipped)
            else:
                ready()
            frame = collect(store) if tracked is None else store.runs()
            if not store.file("report.html").is_file():  # the driver was killed before it
                write_report(store)
            missing = len(set(chosen) - set(store.ledger()))
            took = time.monotonic() - began
            return Outcome(store, store.manifest(), frame, skipped, missing, tracked, took)

    def _check_folder(self, manifest: Manifest) -> None:
        """Two sweeps, or two scales of one, must not end in one table."""
        if self.store.file("manifest.json").is_file():
            there = self.store.manifest()
            if (there.name, there.scale) != (manifest.name, manifest.scale):
                raise ValueError(
                    f"{self.store.path} holds sweep '{there.name}' at scale '{there.scale}', not "
                    f"'{manifest.name}' at '{manifest.scale}'; choose another folder with --out"
                )

    def _fit(self, todo: Mapping[str, Run], ready: Callable[[], Datasets], skipped: int) -> bool:
        """Run trials, then collect and report; whether MLflow has it all.

        Ray starts while the data are loaded, and stops while the report is written.
        """
        tracker, conclude = None, _nothing
        try:
            with ray_session(self.address):
                check_fits(self.hardware)
                datasets = ready()
                conclude = partial(_report, self.store)
                tracker = self._tracker(todo) if self.track else None
                self._trials(todo, datasets, skipped, tracker)
                conclude = _beside(partial(_report, self.store)).result
        except StorageError as error:
            conclude = _nothing
            raise StorageError(f"{error}. {_advice(self.store, len(todo))}") from error
        finally:
            try:
                conclude()
            finally:
                if tracker is not None and tracker.waiting and not self.quiet:
                    self._say(f"{tracker.waiting} runs are still to be logged to MLflow")
                synced = tracker.finish() if tracker is not None else True
        return synced

    def _tracker(self, todo: Mapping[str, Run]) -> Tracker:
        uri = self.tracking_uri or default_uri(self.store.path.parent)
        if self.store.is_remote and not self.quiet:
            self._say(f"MLflow's database cannot lie in an object store; it is {redacted(uri)}")
        configs = {i: run.model_dump(mode="json") for i, run in todo.items()}
        return Tracker(self.store, uri, self._say, configs, curve_of_run)

    def _trials(
        self, todo: Mapping[str, Run], datasets: Datasets, skipped: int, tracker: Tracker | None
    ) -> None:
        show = display(self.console, self.quiet)
        tuning = Tuning(
            *(self.sweep, todo, self.store, self.hardware, self.engine, self.flush_seconds),
            *(show, tracker),
        )
        try:
            show.start(len(todo) or self.sweep.num_samples, skipped)
            tuning.fit(datasets)
        finally:
            show.stop()

    def _say(self, message: str) -> None:
        self.console.print(message, style="yellow", markup=False, soft_wrap=True)


def _beside(work: Callable[[], T]) -> Future[T]:
    """Do it in a thread that nobody waits for at the end, as the pool of an executor is."""
    future = Future[T]()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=do, daemon=True).start()
    return future


def _nothing() -> None:
    """There is nothing to conclude."""


def _report(store: Store) -> None:
    collect(store)
    write_report(store)


def _advice(store: Store, planned: int) -> str:
    """What to do when results could not be written, and how much room the rest takes."""
    goes_on = "The same command goes on where it was"
    if store.is_remote or not (ended := len(store.ledger())):
        return goes_on
    return f"{goes_on}; {planned} runs need about {format_bytes(planned * store.size() / ended)}"


def prepare(runs: Iterable[Run], engine: str = "auto") -> dict[str, Dataset]:
    """Load every dataset once and try what depends on it: partitions, server data, models.

    Raises:
        ValueError: something is missing or does not fit; said before anything runs.
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
