"""A sweep's folder as an MLflow experiment: a parent run, and a child per run of the sweep.

`raysafl.tracking.experiment` says which experiment that is.
"""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysafl.core.component import flatten
from raysafl.storage.checked import read_checked
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.store import Store
from raysafl.tracking import metrics
from raysafl.tracking.client import artifacts, connect, disconnect
from raysafl.tracking.descriptions import (
    begun_runs,
    description,
    ledger_tags,
    mlflow_status,
    report_files,
    source_tags,
    status_counts,
)
from raysafl.tracking.experiment import open_experiment
from raysafl.tracking.saved_view import TAG as VIEW
from raysafl.tracking.saved_view import saved_view
from raysafl.tracking.tags import DIGEST, KIND, LOGGED, RUN, STAMP, SWEEP

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run, RunTag

# draws a run's rows, with a title, as a PNG file
Curve = Callable[[pd.DataFrame, str], bytes]
# The JSON of runs by their ids.
Configs = Mapping[str, Mapping[str, Any]]

# 60 rounds of 15 curves stay below MLflow's limit of 1,000 metrics per request.
ROUNDS_PER_BATCH = 60
# Largest number of characters of a tag in MLflow.
TEXT = 8000
# Largest number of characters of a parameter in MLflow.
PARAM = 6000

# Tags of MLflow's own.
PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"


class Projection:
    """Brings MLflow to what a sweep's folder holds; this may be repeated at any time.

    Runs are found by tags, so they are never doubled. What has been logged is not
    logged again. A run whose rows are not those that were logged, because it was
    deleted and run anew, is replaced.

    Args:
        store: the folder of the sweep.
        uri: MLflow's URI.
        configs: the configurations of runs that have not ended, by run id; those of
            ended runs are in their ledger entries.
        curve: draws the figure of a run; None: no figures.
    """

    def __init__(
        self,
        store: Store,
        uri: str,
        configs: Configs | None = None,
        curve: Curve | None = None,
    ) -> None:
        self.store = store
        self.manifest = store.manifest()
        # How many runs have been looked at. The tracker takes a rising number as
        # progress.
        self.num_looked_at = 0
        self._configs = configs or {}
        self._curve = curve
        self._client = connect(uri)
        self._experiment = open_experiment(
            self._client, store, self.manifest.name, artifacts(uri)
        )
        self._run_labels = self.manifest.labels()
        # MLflow's id of each run.
        self._mlflow_ids: dict[str, str] = {}
        # Runs as MLflow has them, until they are changed.
        self._unchanged: dict[str, Run] = {}
        # MLflow's id of the parent run.
        self._parent = ""
        # Runs whose end has been logged.
        self._ended: set[str] = set()
        # When the last of the runs ended, in milliseconds since 1970.
        self._last_end = 0
        self._find_runs()
        self._open_parent()

    @property
    def experiment_name(self) -> str:
        """The name of the sweep's experiment, which may differ from the sweep's own."""
        return str(self._client.get_experiment(self._experiment).name)

    def close(self) -> None:
        """Close the connections to MLflow."""
        disconnect(self._client)

    def sync_run(self, run_id: str, live: bool = True) -> None:
        """Log what is new of a run, unless this object has logged its end already.

        Args:
            run_id: the run.
            live: whether a run without a ledger entry counts as running (True) or as
                interrupted (False).
        """
        self.num_looked_at += 1
        if run_id in self._ended:
            return
        checked = read_checked(self.store, run_id)
        rows = checked.rounds()
        ending = checked.ledger.get(run_id)
        run = self._child(run_id, rows, ending)
        end = run.info.start_time + metrics.lasted(ending, rows)
        self._last_end = max(self._last_end, end)
        if ending:
            self._end(run, run_id, rows, ending, end)
        else:
            self._log_run(run, rows, self._params(run_id, {}), {}, {})
            self._mark(run, "RUNNING" if live else "KILLED", end)

    def _end(
        self, run: "Run", run_id: str, rows: pd.DataFrame, ending: LedgerEntry, end: int
    ) -> None:
        """Log a run that has ended, unless all of it has been logged."""
        stamp = self._stamp(run_id, rows, ending)
        # A run with this stamp has been logged completely by an earlier process.
        if run.data.tags.get(STAMP) == stamp and run.info.status in (
            "FINISHED",
            "FAILED",
        ):
            self._ended.add(run_id)
            return
        self._upload(run, self._files(run_id, rows, ending))
        params = self._params(run_id, ending.config)
        summary = metrics.summary(rows)
        tags = self._tags(run_id) | ledger_tags(ending) | {STAMP: stamp}
        self._log_run(run, rows, params, summary, tags)
        self._client.set_terminated(run.info.run_id, mlflow_status([ending]), end)
        self._ended.add(run_id)

    def sync_sweep(self) -> int:
        """Log all that is new of every run and of the sweep as a whole, when nothing runs.

        Returns:
            The number of runs.
        """
        self._run_labels = self.store.manifest().labels()
        ledger = read_checked(self.store).ledger
        planned = list(self._run_labels)
        runs = begun_runs(self.store, planned, ledger)
        for run_id in runs:
            self.sync_run(run_id, live=False)
        parent = self._client.get_run(self._parent)
        self._log(parent, status_counts(ledger.values()))
        self._upload(
            parent, {file.name: file.read_bytes() for file in report_files(self.store)}
        )
        self._describe(parent)
        done = set(planned) <= ledger.keys()
        status = mlflow_status(ledger.values()) if done else "KILLED"
        self._client.set_terminated(self._parent, status, self._last_end or None)
        return len(runs)

    def _describe(self, parent: "Run") -> None:
        """Write description, source and saved view on the parent and on the experiment."""
        manifest = self.store.manifest()
        text = description(self.store, TEXT)
        self._tag(parent, {NOTE: text} | source_tags(manifest))
        view = saved_view(
            self._parent,
            manifest.axes,
            manifest.table.statistic,
            parent.info.start_time,
        )
        known = self._client.get_experiment(self._experiment).tags
        # The page of an experiment shows two lines, in which a heading would be too
        # large.
        for name, value in {NOTE: text.removeprefix("# "), VIEW: view}.items():
            if known.get(name) != value:
                self._client.set_experiment_tag(self._experiment, name, value)

    def _find_runs(self) -> None:
        """Look up the runs that MLflow has of this sweep."""
        token = None
        while token != "":
            page = self._client.search_runs([self._experiment], page_token=token)
            for run in page:
                tags = run.data.tags
                if tags.get(KIND) == "child" and RUN in tags:
                    self._mlflow_ids[tags[RUN]] = run.info.run_id
                    self._unchanged[tags[RUN]] = run
                elif tags.get(KIND) == "parent":
                    self._parent = run.info.run_id
            token = page.token or ""

    def _open_parent(self) -> None:
        """Make the parent run, or mark it as running again."""
        if not self._parent:
            starts = [metrics.started(e) for e in self.store.ledger().values()]
            tags = {
                SWEEP: self.manifest.name,
                KIND: "parent",
                NOTE: description(self.store, TEXT),
            }
            made = self._create(self.manifest.name, tags, [s for s in starts if s])
            self._parent = made.info.run_id
        else:
            self._client.update_run(self._parent, "RUNNING")

    def _create(self, name: str, tags: Mapping[str, str], starts: list[int]) -> "Run":
        """Make a run that began at the first of some times, or now."""
        return self._client.create_run(
            self._experiment,
            start_time=min(starts, default=_now()),
            tags=dict(tags),
            run_name=name[:250],
        )

    def _child(
        self, run_id: str, rows: pd.DataFrame, ending: LedgerEntry | None
    ) -> "Run":
        """Return the MLflow run of these rows; make one if there is none that holds them."""
        if run_id in self._mlflow_ids:
            mlflow_id = self._mlflow_ids[run_id]
            run = self._unchanged.pop(run_id, None) or self._client.get_run(mlflow_id)
            tags = run.data.tags
            logged = metrics.digest(rows, int(tags.get(LOGGED, -1)))
            if (
                run.info.lifecycle_stage == "active"
                and tags.get(DIGEST, logged) == logged
            ):
                return run
            if run.info.lifecycle_stage == "active":
                # Without this tag, restoring the experiment would bring the run back.
                self._tag(run, {KIND: "replaced"})
                self._client.delete_run(run.info.run_id)
        # Without a recorded start, it is reckoned back from the time the run has taken.
        start = metrics.started(ending) or _now() - metrics.lasted(ending, rows)
        tags = self._tags(run_id) | {"status": "running"}
        run = self._create(self._title(run_id), tags, [start])
        self._mlflow_ids[run_id] = run.info.run_id
        return run

    def _labels(self, run_id: str) -> dict[str, Any]:
        """Return the labels of a run."""
        # A search adds runs to the manifest while it goes on.
        if run_id not in self._run_labels:
            self._run_labels = {run_id: {}} | self.store.manifest().labels()
        return self._run_labels[run_id]

    def _title(self, run_id: str) -> str:
        """Return a run's name: its labels, words as they are, numbers with their axis."""
        labels = self._labels(run_id).items()
        return (
            ", ".join(v if isinstance(v, str) else f"{k}={v}" for k, v in labels)
            or run_id
        )

    def _tags(self, run_id: str) -> dict[str, str]:
        """Return the tags that a run has from the beginning."""
        labels = {
            f"label.{axis}": str(value) for axis, value in self._labels(run_id).items()
        }
        own = {
            PARENT: self._parent,
            SWEEP: self.manifest.name,
            RUN: run_id,
            KIND: "child",
        }
        return labels | own | source_tags(self.manifest)

    def _stamp(self, run_id: str, rows: pd.DataFrame, ending: LedgerEntry) -> str:
        """Return a fingerprint of everything that is logged of a run that has ended."""
        rest = [
            metrics.digest(rows, 2**31),
            ending.content(),
            self._tags(run_id),
            self._curve is None,
        ]
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def _log_run(
        self,
        run: "Run",
        rows: pd.DataFrame,
        params: Mapping[str, Any],
        summary: Mapping[str, float],
        tags: Mapping[str, str],
    ) -> None:
        """Log the new rounds, and all the rest in one request with the last of them."""
        from mlflow.entities import Param

        values = {_allowed_name(k): str(v)[:PARAM] for k, v in params.items()}
        fresh = [Param(k, v) for k, v in values.items() if k not in run.data.params]
        *batches, (metrics, marks) = self._rounds(run, rows)
        for batch, marked in batches:
            self._client.log_batch(run.info.run_id, batch, tags=_run_tags(marked))
        metrics += _fresh(run, summary)
        self._client.log_batch(
            run.info.run_id, metrics, fresh, _run_tags({**marks, **tags})
        )

    def _params(self, run_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return a run's parameters: its configuration, and its labels, for use in charts."""
        labels = {
            f"label.{axis}": value for axis, value in self._labels(run_id).items()
        }
        return labels | flatten(config or self._configs.get(run_id) or {})

    def _rounds(
        self, run: "Run", rows: pd.DataFrame
    ) -> list[tuple[list["Metric"], dict[str, str]]]:
        """Return the points of the new rounds in batches.

        Each batch comes with the tags that say up to which round it goes. There is at
        least one batch, which may be empty.
        """
        from mlflow.entities import Metric

        times = metrics.elapsed(rows)
        lines = metrics.metric_curves(rows)
        lines = lines[lines.index > int(run.data.tags.get(LOGGED, -1))]
        batches = []
        for first in range(0, len(lines), ROUNDS_PER_BATCH):
            batch = lines.iloc[first : first + ROUNDS_PER_BATCH]
            points = [
                Metric(name, value, run.info.start_time + times[step], step)
                for step, name, value in metrics.finite(batch)
            ]
            last = int(batch.index[-1])
            batches.append(
                (points, {LOGGED: str(last), DIGEST: metrics.digest(rows, last)})
            )
        return batches or [([], {})]

    def _log(self, run: "Run", values: Mapping[str, float]) -> None:
        """Log numbers that belong to no round, if they have changed."""
        self._client.log_batch(run.info.run_id, _fresh(run, values))

    def _tag(self, run: "Run", tags: Mapping[str, str]) -> None:
        """Set tags of a run in one request."""
        self._client.log_batch(run.info.run_id, tags=_run_tags(tags))

    def _mark(self, run: "Run", status: str, end: int) -> None:
        """Mark a run that has not ended as running or as interrupted."""
        if run.info.status == status:
            return
        if status == "RUNNING":
            self._client.update_run(run.info.run_id, status)
        else:
            self._client.set_terminated(run.info.run_id, status, end)
        self._tag(run, {"status": "running" if status == "RUNNING" else "interrupted"})

    def _files(
        self, run_id: str, rows: pd.DataFrame, ending: LedgerEntry
    ) -> dict[str, bytes]:
        """Return a run's files: its configuration, and a figure if it has several replicates.

        MLflow itself draws the curve of a single replicate. The traceback of a failed
        try stays when a later try finishes, so its first line says when that try ended.
        """
        files = {"config.json": json.dumps(ending.config, indent=1).encode()}
        if ending.traceback:
            text = f"The try that ended at {ending.ended} failed:\n{ending.traceback}"
            files["traceback.txt"] = text.encode()
        if self._curve and rows["replicate"].nunique() > 1:
            files["curve.png"] = self._curve(rows, self._title(run_id))
        return files

    def _upload(self, run: "Run", files: Mapping[str, bytes]) -> None:
        """Store files as artifacts of a run."""
        with TemporaryDirectory() as temporary:
            for name, content in files.items():
                (Path(temporary) / name).write_bytes(content)
            self._client.log_artifacts(run.info.run_id, temporary)


def _fresh(run: "Run", values: Mapping[str, float]) -> list["Metric"]:
    """Return those finite numbers that differ from what the run has."""
    from mlflow.entities import Metric

    now = _now()
    known = run.data.metrics
    fresh = {
        k: float(v) for k, v in values.items() if math.isfinite(v) and known.get(k) != v
    }
    return [Metric(_allowed_name(name), value, now, 0) for name, value in fresh.items()]


def _run_tags(tags: Mapping[str, str]) -> list["RunTag"]:
    """Turn tags into MLflow's objects."""
    from mlflow.entities import RunTag

    return [RunTag(_allowed_name(name), text[:TEXT]) for name, text in tags.items()]


def _now() -> int:
    """Return the time in milliseconds since 1970."""
    return int(1000 * time.time())


def _allowed_name(name: str) -> str:
    """Replace the characters that MLflow does not allow in a name."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
