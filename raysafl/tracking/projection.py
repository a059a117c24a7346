"""A sweep's folder in MLflow: a parent run, and a child for each run of the sweep.

They are in the experiment that has the sweep's name, and a child is found again by our
id of its run. So two folders of one name are one sweep, as the folder logged last has it.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from raysafl.core.component import flatten
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import label_text
from raysafl.storage.mlflow_view import MlflowView, write_view
from raysafl.storage.store import RunResult, Store
from raysafl.tracking import client as mlflow_client
from raysafl.tracking import descriptions, metrics
from raysafl.tracking.choice import Tracking, stride
from raysafl.tracking.client import SWEEP
from raysafl.tracking.metrics import Reading, milliseconds

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run

# Runs whose rows are in memory at the same time.
RUNS_AT_ONCE = 250

# Tags of MLflow's own.
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
# Our tags: what a run of MLflow stands for, and how much of which content it has.
KIND = "raysafl.kind"
RUN = "raysafl.run_id"
STAMP = "raysafl.stamp"


@dataclass
class RunBeingLogged:
    """A run that this process has begun to log, and whose end is still to come.

    Args:
        mlflow_id: MLflow's id of it.
        start: when it started, in milliseconds since 1970.
        last_round: the last round of its curves that is logged; -1 if there is none.
    """

    mlflow_id: str
    start: int
    last_round: int = -1


class Projection:
    """Brings MLflow to what a sweep's folder holds; this may be repeated at any time.

    A run is logged from its first rows to its end by one object, which appends what is
    new, and in the end stamps it with what it was made of. A run whose stamp is that of
    the folder is left alone. Any other is deleted and logged again as a whole, as MLflow
    changes no parameter and deletes no number.

    Args:
        store: the folder of the sweep.
        uri: MLflow's URI.
        track: how much is logged. `auto` is resolved by the number of runs in the
            manifest.

    Raises:
        ValueError: `track` is `none`.
    """

    def __init__(self, store: Store, uri: str, track: Tracking = Tracking.AUTO) -> None:
        self.store = store
        self.manifest = store.manifest()
        self._track = track.resolved(len(self.manifest.entries))
        if self._track is Tracking.NONE:
            raise ValueError("nothing is to be logged to MLflow (track is 'none')")
        self._uri = uri
        self._run_labels = self.manifest.labels()
        # MLflow's ids of the runs that it has, and the stamps of those that are complete.
        self._mlflow_ids: dict[str, str] = {}
        self._stamps: dict[str, str] = {}
        self._being_logged: dict[str, RunBeingLogged] = {}
        # How the runs ended that MLflow has as the folder has them.
        self._ends: dict[str, Status] = {}
        self._client = mlflow_client.connect(uri)
        with ExitStack() as if_this_fails:
            if_this_fails.callback(self.close)
            name = self.manifest.name
            self._experiment = mlflow_client.open_experiment(
                self._client, name, mlflow_client.artifacts(uri)
            )
            starts = [milliseconds(end.started) for end in store.ledger().values()]
            start = min(filter(None, starts), default=metrics.now())
            tags = {SWEEP: name, KIND: "parent"}
            self._parent = self._find_runs() or self._create(name, tags, start)
            self._client.update_run(self._parent.info.run_id, "RUNNING")
            # Where MLflow shows the sweep.
            self._view = MlflowView(uri, self._experiment, self._parent.info.run_id)
            write_view(store, self._view)
            self._describe({})
            if_this_fails.pop_all()

    def close(self) -> None:
        """Close the connections to MLflow."""
        mlflow_client.disconnect(self._client)

    def sync_runs(self, run_ids: Collection[str], live: bool = True) -> None:
        """Log what is new of some runs.

        Args:
            run_ids: the runs.
            live: whether runs that have not ended go on (True) or were interrupted (False).
        """
        # Nothing more comes of a run that has ended for good.
        left = [i for i in run_ids if i not in self._ends or not self._ends[i].decided]
        # A search adds runs to the manifest while it goes on.
        if not self._run_labels.keys() >= set(left):
            self.manifest = self.store.manifest()
            self._run_labels = self.manifest.labels()
        for first in range(0, len(left), RUNS_AT_ONCE):
            ids = left[first : first + RUNS_AT_ONCE]
            some = metrics.read_runs(self.store, ids, live)
            for run_id, reading in some.items():
                if reading.has_ended or not live:
                    self._log_to_the_end(run_id, reading)
                elif reading.run.has_begun:
                    self._log_running(run_id, reading)

    def sync_sweep(self) -> int:
        """Log all that is new of every run and of the sweep as a whole, when nothing runs.

        Returns:
            The number of runs.
        """
        results = self.store.read()
        runs = list(results.begun)
        self.sync_runs(runs, live=False)
        parent = self._parent.info.run_id
        files = {
            file.name: file.read_bytes()
            for file in descriptions.report_files(self.store)
        }
        self._upload(parent, files)
        ends = [self._ends.get(run_id, Status.WAITING) for run_id in results.runs]
        self._describe(descriptions.status_counts(ends))
        times = [milliseconds(run.ended) for run in results.runs.values()]
        end = max(times, default=0) or None
        self._client.set_terminated(parent, descriptions.mlflow_status(ends), end)
        mlflow_client.analyse(self._uri)
        return len(runs)

    def _describe(self, counts: Mapping[str, str]) -> None:
        """Write description, source and saved view on the parent and on the experiment."""
        manifest = self.store.manifest()
        parent = self._parent.info
        text = descriptions.description(
            self.store, metrics.TEXT, self._track.note, self._view
        )
        tags = {NOTE: text, **counts, **descriptions.source_tags(manifest)}
        self._client.log_batch(parent.run_id, tags=metrics.run_tags(tags))
        view = descriptions.saved_view(manifest, parent.start_time)
        # The page of an experiment shows two lines, in which a heading would be too
        # large.
        for name, value in {
            NOTE: text.removeprefix(descriptions.HEADING),
            descriptions.VIEW: view,
        }.items():
            self._client.set_experiment_tag(self._experiment, name, value)

    def _find_runs(self) -> "Run | None":
        """Look up the runs that MLflow has of this sweep, and return the parent run."""
        parent = None
        for run in self._all_runs():
            tags = run.data.tags
            run_id = tags.get(RUN, "")
            # A run without our tag was logged by the user.
            if KIND in tags and not run_id and parent is None:
                parent = run
            elif run_id:
                self._mlflow_ids[run_id] = run.info.run_id
                # A stamp counts as soon as the run is no longer shown as running.
                if run.info.status != "RUNNING":
                    self._stamps[run_id] = tags.get(STAMP, "")
        return parent

    def _all_runs(self) -> "Iterator[Run]":
        """Yield the runs of the experiment, of which MLflow returns so many at a time."""
        token = None
        while token != "":
            page = self._client.search_runs([self._experiment], page_token=token)
            yield from page
            token = page.token or ""

    def _create(self, name: str, tags: Mapping[str, str], start: int) -> "Run":
        """Make a run that began at a time in milliseconds since 1970."""
        return self._client.create_run(
            self._experiment, start, metrics.allowed_tags(tags), name[:250]
        )

    def _log_running(self, run_id: str, reading: Reading) -> None:
        """Log the new rows of a run that goes on; with the first ones, what is known of it."""
        run = self._being_logged.get(run_id)
        if run is None:
            run = self._begin(run_id, reading, self._tags(reading.run))
            self._send(run, self._new_points(run, reading), reading.run)
        elif fresh := self._new_points(run, reading):
            self._client.log_batch(run.mlflow_id, fresh)

    def _log_to_the_end(self, run_id: str, reading: Reading) -> None:
        """Log all of a run that has ended or was interrupted, unless MLflow has it so."""
        tags = self._tags(reading.run)
        if reading.has_ended:
            tags |= descriptions.result_tag(reading.statistics, self.manifest.table)
        content = self._fingerprint(tags, reading)
        # A run with curves has a summary too.
        enough = {f"{track} {content}" for track in (self._track, Tracking.CURVES)}
        if self._stamps.get(run_id) not in enough:
            stamp = f"{self._track} {content}"
            self._log_end(run_id, reading, tags | {STAMP: stamp})
            self._stamps[run_id] = stamp
        if reading.has_ended:
            self._ends[run_id] = reading.run.status

    def _log_end(self, run_id: str, reading: Reading, tags: dict[str, str]) -> None:
        """Log what MLflow lacks of a run, in as few requests as it allows."""
        run = self._being_logged.get(run_id)
        if run is None:
            run = self._begin(run_id, reading, tags)
            tags = {}
        shown = metrics.shown_statistics(self.manifest)
        means = {n: reading.statistics[n][0] for n in shown if n in reading.statistics}
        fresh = self._new_points(run, reading)
        if reading.has_ended:
            fresh += metrics.single_metrics(means)
        self._send(run, fresh, reading.run, tags)
        if self._track is Tracking.CURVES and reading.has_ended:
            self._upload(run.mlflow_id, self._files(reading))
        status = descriptions.mlflow_status([reading.run.status])
        self._client.set_terminated(run.mlflow_id, status, run.start + reading.lasted)
        del self._being_logged[run_id]

    def _begin(
        self, run_id: str, reading: Reading, tags: Mapping[str, str]
    ) -> RunBeingLogged:
        """Make the run in MLflow with its first tags, in place of one that it may have."""
        if before := self._mlflow_ids.get(run_id):
            self._client.delete_run(before)
            self._stamps.pop(run_id, None)
        # Without a recorded start, it is reckoned back from the time the run has taken.
        start = milliseconds(reading.run.started) or metrics.now() - reading.lasted
        made = self._create(self._title(run_id), tags, start)
        self._mlflow_ids[run_id] = made.info.run_id
        self._being_logged[run_id] = RunBeingLogged(made.info.run_id, start)
        return self._being_logged[run_id]

    def _new_points(self, run: RunBeingLogged, reading: Reading) -> "list[Metric]":
        """Return the points of a run's curves that are not logged, which then count as logged."""
        if self._track is not Tracking.CURVES:
            return []
        # A run that failed may go on, so that its last round may not stay the last.
        decided = all(end.status.decided for end in reading.run.cells)
        curves = reading.curves
        if not decided:
            # Until all seeds have come so far, the means over them change.
            last = reading.rows.groupby("replicate")["round"].max()
            is_whole = len(last) == len(reading.run.cells)
            curves = curves[curves.index <= (last.min() if is_whole else -1)]
        # Every k-th round, and the last one of a run that has ended for good.
        keep = np.arange(1, len(curves) + 1) % stride(reading.run.config) == 0
        keep[-1:] |= decided
        curves = curves[keep & (curves.index > run.last_round)]
        run.last_round = max([run.last_round, *curves.index.tolist()])
        return metrics.points(curves, run.start)

    def _send(
        self,
        run: RunBeingLogged,
        fresh: "list[Metric]",
        result: RunResult,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Log metrics, parameters and tags of a run in one request.

        Args:
            run: the run in MLflow.
            fresh: what is new of its curves and statistics.
            result: the run as the folder has it.
            tags: tags that it does not have yet.
        """
        # Charts are drawn against parameters, so the labels are among them.
        values = self._labels(result.run_id) | flatten(result.config)
        self._client.log_batch(
            run.mlflow_id,
            fresh,
            metrics.params(values),
            metrics.run_tags(tags or {}),
        )

    def _title(self, run_id: str) -> str:
        """Return a run's name: its labels, words as they are, numbers with their axis."""
        labels = self._run_labels.get(run_id, {}).items()
        words = (v if isinstance(v, str) else f"{k}={label_text(v)}" for k, v in labels)
        return ", ".join(words) or run_id

    def _labels(self, run_id: str) -> dict[str, Any]:
        """Return the labels of a run as MLflow has them; it has none if the manifest lacks it."""
        labels = self._run_labels.get(run_id, {})
        return {f"label.{axis}": value for axis, value in labels.items()}

    def _tags(self, run: RunResult) -> dict[str, str]:
        """Return the tags of a run: its place in the sweep, and how it ended or that it runs."""
        place = {
            PARENT: self._parent.info.run_id,
            SWEEP: self.manifest.name,
            RUN: run.run_id,
            KIND: "child",
        }
        labels = {name: str(v) for name, v in self._labels(run.run_id).items()}
        return (
            labels
            | place
            | descriptions.source_tags(self.manifest)
            | descriptions.ending_tags(run)
        )

    def _fingerprint(self, tags: Mapping[str, str], reading: Reading) -> str:
        """Return a fingerprint of everything that is logged of a run.

        Args:
            tags: its tags.
            reading: the run, as the folder has it. Of its rows, the number says enough: the
                rows of a cell follow from its id.
        """
        shown = metrics.shown_statistics(self.manifest)
        # Parts are joined, which changes no result.
        ends = [
            end.model_dump(mode="json", exclude={"rounds", "clients"})
            for end in reading.run.cells
        ]
        text = json.dumps([tags, len(reading.rows), ends, shown], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _files(self, reading: Reading) -> dict[str, bytes]:
        """Return a run's files: configuration, statistics, traceback and kept models."""
        run = reading.run
        files = {"config.json": json.dumps(run.config, indent=1).encode()}
        if reading.statistics:
            files["statistics.json"] = descriptions.statistics_file(reading.statistics)
        if traceback := run.worst.traceback:
            files["traceback.txt"] = traceback.encode()
        return files | descriptions.model_files(self.store, run)

    def _upload(self, mlflow_id: str, files: Mapping[str, bytes]) -> None:
        """Store files as artifacts of a run."""
        with TemporaryDirectory() as temporary:
            for name, content in files.items():
                file = Path(temporary) / name
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(content)
            self._client.log_artifacts(mlflow_id, temporary)
