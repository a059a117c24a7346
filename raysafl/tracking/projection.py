"""A sweep's folder in MLflow: a parent run, and a child for each run of the sweep.

They are in the experiment that has the sweep's name, and a child is found again by our
id of its run. So two folders of one name are one sweep, as the folder logged last has it.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from raysafl.core.component import flatten
from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Manifest, label_text
from raysafl.storage.mlflow_view import MlflowView, write_view
from raysafl.storage.store import Store
from raysafl.tracking.choice import Tracking, stride, thinning_note
from raysafl.tracking.client import (
    SWEEP,
    analyse,
    artifacts,
    connect,
    disconnect,
    open_experiment,
)
from raysafl.tracking.descriptions import (
    HEADING,
    description,
    ledger_tags,
    mlflow_status,
    report_files,
    result_tag,
    source_tags,
    statistics_file,
    status_counts,
)
from raysafl.tracking.entities import (
    TEXT,
    allowed_tags,
    fresh_metrics,
    fresh_params,
    now,
    points,
    run_tags,
)
from raysafl.tracking.kept import kept_models
from raysafl.tracking.metrics import (
    Reading,
    last_round,
    milliseconds,
    read_runs,
    shown_statistics,
    thinned,
)
from raysafl.tracking.saved_view import TAG as VIEW
from raysafl.tracking.saved_view import saved_view

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Metric, Run

# Draws a run's rows, with a title, as a PNG file; the sweep says which column is drawn.
Curve = Callable[["pd.DataFrame", str, Manifest], bytes]

# Runs whose rows are in memory at the same time.
RUNS_AT_ONCE = 250
# So many points stay with parameters and tags below MLflow's limit of 1,000 entries in a
# request.
POINTS_AT_ONCE = 750

# Tags of MLflow's own.
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
# Our tags: what a run of MLflow stands for.
KIND = "raysafl.kind"
RUN = "raysafl.run_id"
# The last round that was looked at for curves, and the fingerprint of the rows up to it.
LOGGED = "raysafl.logged_round"
DIGEST = "raysafl.digest"
# How much was logged of a run that has ended, and the fingerprint of all of it.
STAMP = "raysafl.stamp"


class Projection:
    """Brings MLflow to what a sweep's folder holds; this may be repeated at any time.

    Runs are found by tags, so they are never doubled. What has been logged is not
    logged again. A run whose rows are not those that were logged, because it was
    deleted and run anew, is replaced.

    Args:
        store: the folder of the sweep.
        uri: MLflow's URI.
        track: how much is logged. `auto` is resolved by the number of runs in the
            manifest.
        curve: draws the figure of a run; None: no figures.

    Raises:
        ValueError: `track` is `none`.
    """

    def __init__(
        self,
        store: Store,
        uri: str,
        track: Tracking = Tracking.AUTO,
        curve: Curve | None = None,
    ) -> None:
        self.store = store
        self.manifest = store.manifest()
        # How many runs have been looked at. The tracker takes a rising number as
        # progress.
        self.num_looked_at = 0
        self._track = track.resolved(len(self.manifest.entries))
        if self._track is Tracking.NONE:
            raise ValueError("nothing is to be logged to MLflow (track is 'none')")
        self._curve = curve
        self._uri = uri
        self._run_labels = self.manifest.labels()
        # MLflow's ids of the runs, and the stamps of those that have ended there.
        self._mlflow_ids: dict[str, str] = {}
        self._stamps: dict[str, str] = {}
        # How runs ended whose end has been logged.
        self._ends: dict[str, Status] = {}
        # Runs without curves that are shown as running.
        self._running: set[str] = set()
        self._client = connect(uri)
        with ExitStack() as failed:
            failed.callback(self.close)
            name = self.manifest.name
            self._experiment = open_experiment(self._client, name, artifacts(uri))
            starts = [milliseconds(entry.started) for entry in store.ledger().values()]
            start = min(filter(None, starts), default=now())
            tags = {SWEEP: name, KIND: "parent"}
            self._parent = self._find_runs() or self._create(name, tags, start)
            self._client.update_run(self._parent.info.run_id, "RUNNING")
            # Where MLflow shows the sweep.
            self._view = MlflowView(uri, self._experiment, self._parent.info.run_id)
            write_view(store, self._view)
            self._describe({})
            failed.pop_all()

    def close(self) -> None:
        """Close the connections to MLflow."""
        disconnect(self._client)

    def sync_runs(self, run_ids: Collection[str], live: bool = True) -> None:
        """Log what is new of some runs, unless this object has logged their end already.

        Args:
            run_ids: the runs.
            live: whether a run without a ledger entry counts as running (True) or as
                interrupted (False).
        """
        # The end of others has been logged, and no other end may follow.
        left = [i for i in run_ids if i not in self._ends or not self._ends[i].decided]
        self.num_looked_at += len(run_ids) - len(left)
        # A search adds runs to the manifest while it goes on.
        if not self._run_labels.keys() >= set(left):
            self.manifest = self.store.manifest()
            self._run_labels = self.manifest.labels()
        for first in range(0, len(left), RUNS_AT_ONCE):
            ids = left[first : first + RUNS_AT_ONCE]
            some = read_runs(self.store, ids, self.manifest)
            for run_id, reading in some.items():
                if reading.ending is None:
                    self._log_begun(run_id, reading, live)
                else:
                    self._log_ended(run_id, reading, reading.ending)
                self.num_looked_at += 1

    def sync_sweep(self) -> int:
        """Log all that is new of every run and of the sweep as a whole, when nothing runs.

        Returns:
            The number of runs.
        """
        planned = list(self.store.manifest().labels())
        begun = self.store.begun()
        runs = [i for i in planned if i in begun] + sorted(begun.difference(planned))
        self.sync_runs(runs, live=False)
        parent = self._parent.info.run_id
        files = {file.name: file.read_bytes() for file in report_files(self.store)}
        self._upload(parent, files)
        ends = [self._ends[run_id] for run_id in planned if run_id in self._ends]
        self._describe(status_counts(ends))
        status = mlflow_status(ends) if len(ends) == len(planned) else "KILLED"
        times = [milliseconds(entry.ended) for entry in self.store.ledger().values()]
        self._client.set_terminated(parent, status, max(times, default=0) or None)
        analyse(self._uri)
        return len(runs)

    def _describe(self, counts: Mapping[str, str]) -> None:
        """Write description, source and saved view on the parent and on the experiment."""
        manifest = self.store.manifest()
        parent = self._parent.info
        text = description(self.store, TEXT, self._track.note, self._view)
        tags = {NOTE: text, **counts, **source_tags(manifest)}
        self._client.log_batch(parent.run_id, tags=run_tags(tags))
        view = saved_view(parent.run_id, manifest, parent.start_time)
        known = self._client.get_experiment(self._experiment).tags
        # The page of an experiment shows two lines, in which a heading would be too
        # large.
        for name, value in {NOTE: text.removeprefix(HEADING), VIEW: view}.items():
            if known.get(name) != value:
                self._client.set_experiment_tag(self._experiment, name, value)

    def _find_runs(self) -> "Run | None":
        """Look up the runs that MLflow has of this sweep, and return the parent run.

        Runs that are there twice are deleted.
        """
        parent = None
        token = None
        # Two folders of one name that were logged at the same time leave runs twice.
        doubles: list[str] = []
        while token != "":
            page = self._client.search_runs([self._experiment], page_token=token)
            for run in page:
                tags = run.data.tags
                mlflow_id = run.info.run_id
                run_id = tags.get(RUN, "")
                if KIND not in tags:
                    # The user has logged it.
                    continue
                if run_id in self._mlflow_ids or (parent and not run_id):
                    doubles.append(mlflow_id)
                elif not run_id:
                    parent = run
                else:
                    self._mlflow_ids[run_id] = mlflow_id
                    if run.info.status in ("FINISHED", "FAILED"):
                        self._stamps[run_id] = tags.get(STAMP, "")
            token = page.token or ""
        for mlflow_id in doubles:
            self._client.delete_run(mlflow_id)
        return parent

    def _create(self, name: str, tags: Mapping[str, str], start: int) -> "Run":
        """Make a run that began at a time in milliseconds since 1970."""
        return self._client.create_run(
            self._experiment, start, allowed_tags(tags), name[:250]
        )

    def _log_begun(self, run_id: str, reading: Reading, live: bool) -> None:
        """Log what is new of a run that has not ended, and mark it as running or interrupted."""
        if live and run_id in self._running:
            return
        shown = "running" if live else "interrupted"
        run = self._logged_run(run_id, reading) or self._create_child(
            run_id, reading, {"status": shown}
        )
        config = reading.about.get("config", {})
        self._send(run, run_id, reading, config, {}, {"status": shown})
        if live and run.info.status != "RUNNING":
            self._client.update_run(run.info.run_id, "RUNNING")
        elif not live and run.info.status != "KILLED":
            end = run.info.start_time + reading.lasted
            self._client.set_terminated(run.info.run_id, "KILLED", end)
        if live and self._track is Tracking.SUMMARY:
            self._running.add(run_id)

    def _log_ended(self, run_id: str, reading: Reading, ending: LedgerEntry) -> None:
        """Log a run that has ended, unless all of it has been logged."""
        content = self._fingerprint(run_id, reading, ending)
        # A run with curves has a summary too.
        enough = {f"{track} {content}" for track in (self._track, Tracking.CURVES)}
        if self._stamps.get(run_id) not in enough:
            stamp = f"{self._track} {content}"
            self._log_end(run_id, reading, ending, stamp)
            self._stamps[run_id] = stamp
        self._ends[run_id] = ending.status
        self._running.discard(run_id)

    def _log_end(
        self, run_id: str, reading: Reading, ending: LedgerEntry, stamp: str
    ) -> None:
        """Log what MLflow lacks of a run that has ended, in as few requests as it allows."""
        table = self.manifest.table
        tags = ledger_tags(ending) | result_tag(reading.statistics, table)
        files = {}
        if self._track is Tracking.CURVES:
            models, absence = kept_models(self.store, run_id, ending)
            files = self._files(run_id, reading, ending) | models
            thinning = thinning_note(stride(ending.config, len(reading.curves)))
            if note := "\n\n".join(filter(None, (thinning, absence))):
                tags[NOTE] = note
        run = self._logged_run(run_id, reading)
        if run is None:
            run = self._create_child(run_id, reading, tags)
            tags = {}
        else:
            tags |= self._tags(run_id)
            if run.info.status != "RUNNING":
                self._client.update_run(run.info.run_id, "RUNNING")
        shown = [n for n in shown_statistics(self.manifest) if n in reading.statistics]
        statistics = {name: reading.statistics[name][0] for name in shown}
        # The stamp does not count as long as the run is shown as running.
        tags[STAMP] = stamp
        self._send(run, run_id, reading, ending.config, statistics, tags)
        if files:
            self._upload(run.info.run_id, files)
        end = run.info.start_time + reading.lasted
        status = mlflow_status([ending.status])
        self._client.set_terminated(run.info.run_id, status, end)

    def _send(
        self,
        run: "Run",
        run_id: str,
        reading: Reading,
        config: Mapping[str, Any],
        statistics: Mapping[str, float],
        tags: Mapping[str, str],
    ) -> None:
        """Log the new points of a run and all the rest, with tags that say how far it is logged.

        Args:
            run: the run as MLflow has it.
            run_id: our id of it.
            reading: the run as the folder has it.
            config: its configuration as JSON values; empty if it is not known.
            statistics: the final statistics that MLflow gets as metrics.
            tags: further tags.
        """
        fresh: list[Metric] = []
        marks: dict[str, str] = {}
        # Until the other replicates have caught up with reused ones, all means change.
        if self._track is Tracking.CURVES and not reading.about.get("grown_from"):
            # A run that failed may go on, so that its last round may not stay the last.
            decided = reading.ending is not None and reading.ending.status.decided
            k = stride(config, len(reading.curves))
            curves = thinned(reading.curves, k, decided)
            logged = int(run.data.tags.get(LOGGED, -1))
            fresh = points(curves[curves.index > logged], run.info.start_time)
            through = last_round(curves)
            marks = {LOGGED: str(through), DIGEST: reading.digest(through)}
        if len(fresh) > POINTS_AT_ONCE:
            # MLflow would store the tags with the first of them. If the rest got lost,
            # the tags would say that it is there.
            self._client.log_batch(run.info.run_id, fresh)
            fresh = []
        fresh += fresh_metrics(statistics, run.data.metrics)
        # Charts are drawn against parameters, so the labels are among them.
        params = self._labels(run_id) | flatten(config)
        self._client.log_batch(
            run.info.run_id,
            fresh,
            fresh_params(params, run.data.params),
            run_tags({**tags, **marks}),
        )

    def _logged_run(self, run_id: str, reading: Reading) -> "Run | None":
        """Return the MLflow run of these rows; None if there is none that holds them.

        One that holds other rows or labels, or a number that the rows do not give, is
        deleted.
        """
        if run_id not in self._mlflow_ids:
            return None
        run = self._client.get_run(self._mlflow_ids[run_id])
        if run.info.lifecycle_stage != "active":
            return None
        tags = run.data.tags
        logged = reading.digest(int(tags.get(LOGGED, -1)))
        own = fresh_params(self._labels(run_id), {})
        params = run.data.params
        # MLflow changes no parameter and deletes no metric, so other ones need a new run.
        is_same = all(params.get(p.key, p.value) == p.value for p in own)
        shown = run.data.metrics.keys() & {*shown_statistics(self.manifest)}
        is_same &= shown <= reading.statistics.keys()
        if tags.get(DIGEST, logged) == logged and is_same:
            return run
        self._client.delete_run(run.info.run_id)
        return None

    def _create_child(
        self, run_id: str, reading: Reading, tags: Mapping[str, str]
    ) -> "Run":
        """Make the MLflow run of a run, with these tags besides its own."""
        # Without a recorded start, it is reckoned back from the time the run has taken.
        ending = reading.ending
        started = ending.started if ending else reading.about.get("started", "")
        start = milliseconds(started) or now() - reading.lasted
        run = self._create(self._title(run_id), {**self._tags(run_id), **tags}, start)
        self._mlflow_ids[run_id] = run.info.run_id
        return run

    def _title(self, run_id: str) -> str:
        """Return a run's name: its labels, words as they are, numbers with their axis."""
        labels = self._run_labels.get(run_id, {}).items()
        words = (v if isinstance(v, str) else f"{k}={label_text(v)}" for k, v in labels)
        return ", ".join(words) or run_id

    def _labels(self, run_id: str) -> dict[str, Any]:
        """Return the labels of a run as MLflow has them; it has none if the manifest lacks it."""
        labels = self._run_labels.get(run_id, {})
        return {f"label.{axis}": value for axis, value in labels.items()}

    def _tags(self, run_id: str) -> dict[str, str]:
        """Return the tags that a run has from the beginning."""
        own = {
            PARENT: self._parent.info.run_id,
            SWEEP: self.manifest.name,
            RUN: run_id,
            KIND: "child",
        }
        labels = {name: str(value) for name, value in self._labels(run_id).items()}
        return labels | own | source_tags(self.manifest)

    def _fingerprint(self, run_id: str, reading: Reading, ending: LedgerEntry) -> str:
        """Return a fingerprint of everything that is logged of a run that has ended."""
        table = self.manifest.table
        rest = [
            reading.digest(last_round(reading.curves)),
            ending.content(),
            self._tags(run_id),
            self._curve is None,
            [table.scale, table.unit, shown_statistics(self.manifest)],
        ]
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def _files(
        self, run_id: str, reading: Reading, ending: LedgerEntry
    ) -> dict[str, bytes]:
        """Return a run's files: configuration, statistics, traceback and figure.

        The figure shows the spread over several replicates; MLflow itself draws the
        curve of a single one. The traceback of a failed try stays when a later try
        finishes, so its first line says when that try ended.
        """
        rows = reading.rows
        files = {"config.json": json.dumps(ending.config, indent=1).encode()}
        if reading.statistics:
            files["statistics.json"] = statistics_file(reading.statistics)
        if ending.traceback:
            text = f"The try that ended at {ending.ended} failed:\n{ending.traceback}"
            files["traceback.txt"] = text.encode()
        if self._curve and rows["replicate"].nunique() > 1:
            title = self._title(run_id)
            files["curve.png"] = self._curve(rows, title, self.manifest)
        return files

    def _upload(self, mlflow_id: str, files: Mapping[str, bytes]) -> None:
        """Store files as artifacts of a run."""
        with TemporaryDirectory() as temporary:
            for name, content in files.items():
                file = Path(temporary) / name
                file.parent.mkdir(exist_ok=True)
                file.write_bytes(content)
            self._client.log_artifacts(mlflow_id, temporary)
