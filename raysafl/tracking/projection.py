"""A sweep's folder as an MLflow experiment: a parent run, and a child per run of the sweep."""

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
from raysafl.storage.ledger import LedgerEntry
from raysafl.storage.store import Store
from raysafl.tracking import descriptions as folder
from raysafl.tracking import metrics as points
from raysafl.tracking.client import artifacts, connect, disconnect
from raysafl.tracking.saved_view import TAG as VIEW
from raysafl.tracking.saved_view import saved_view

if TYPE_CHECKING:
    from mlflow.entities import Metric, Run, RunTag

Curve = Callable[[pd.DataFrame, str], bytes]  # a run's rows and title to a PNG
Configs = Mapping[str, Mapping[str, Any]]  # run id to the run as JSON

ROUNDS_PER_BATCH = 60  # times 15 curves: below MLflow's 1,000 metrics per request
TEXT = 8000  # MLflow's longest tag
PARAM = 6000  # and parameter
KIND, SWEEP, RUN = "raysafl.kind", "raysafl.sweep", "raysafl.run_id"
LOGGED, DIGEST, STAMP = "raysafl.logged_round", "raysafl.digest", "raysafl.stamp"
PARENT, NOTE = "mlflow.parentRunId", "mlflow.note.content"


class Projection:
    """Brings MLflow to what a sweep's folder holds, however often it is asked.

    Runs are found by tags and never doubled. What has been logged is never logged again; a run
    whose rows are not those that were logged (it was deleted and run anew) is replaced.
    `configs` are parameters of runs that have not ended; an ended run's are in its ledger entry.
    """

    def __init__(
        self, store: Store, uri: str, configs: Configs | None = None, curve: Curve | None = None
    ) -> None:
        self.store, self.manifest = store, store.manifest()
        self._configs, self._curve = configs or {}, curve
        self._client = connect(uri)
        self._experiment = self._open_experiment(artifacts(uri))
        self._places = self.manifest.labels()
        self._runs: dict[str, str] = {}  # to MLflow's ids
        self._found: dict[str, Run] = {}  # as they are, until they are changed
        self._parent = ""
        self._ended: set[str] = set()  # the runs whose end is logged
        self.looked = 0  # how many runs have been looked at: a sign of life
        self._last = 0  # when the last of the runs ended
        self._find_runs()
        self._open_parent()

    def close(self) -> None:
        """Close the connections."""
        disconnect(self._client)

    def sync_run(self, run_id: str, live: bool = True) -> None:
        """Log what is new of a run. `live`: a run that has not ended is still running.

        A run whose end this object has logged is not looked at again.
        """
        self.looked += 1
        if run_id in self._ended:
            return
        rows, ending = self.store.rounds(run_id), self.store.ledger_entry(run_id)
        run = self._child(run_id, rows, ending)
        end = run.info.start_time + points.lasted(ending, rows)
        self._last = max(self._last, end)
        if ending:
            self._end(run, run_id, rows, ending, end)
        else:
            self._log_run(run, rows, self._params(run_id, {}), {}, {})
            self._mark(run, "RUNNING" if live else "KILLED", end)

    def _end(
        self, run: "Run", run_id: str, rows: pd.DataFrame, ending: LedgerEntry, end: int
    ) -> None:
        """Log a run that has ended, unless it is all there."""
        stamp, known = self._stamp(run_id, rows, ending), run.data
        if known.tags.get(STAMP) == stamp and run.info.status in ("FINISHED", "FAILED"):
            self._ended.add(run_id)
            return
        self._upload(run, self._files(run_id, rows, ending))
        params, summary = self._params(run_id, ending.config), points.summary(rows)
        tags = self._tags(run_id) | folder.facts(ending) | {STAMP: stamp}
        self._log_run(run, rows, params, summary, tags)
        self._client.set_terminated(run.info.run_id, folder.outcome([ending]), end)
        self._ended.add(run_id)

    def sync_sweep(self) -> int:
        """Log all that is new, of every run and of the whole, when nothing runs any more.

        Returns how many runs there are.
        """
        self._places, ledger = self.store.manifest().labels(), self.store.ledger()
        planned = list(self._places)
        runs = folder.begun(self.store, planned, ledger)
        for run_id in runs:
            self.sync_run(run_id, live=False)
        parent = self._client.get_run(self._parent)
        self._log(parent, folder.counts(ledger.values()))
        self._upload(parent, {file.name: file.read_bytes() for file in folder.papers(self.store)})
        self._describe(parent)
        done = set(planned) <= ledger.keys()
        status = folder.outcome(ledger.values()) if done else "KILLED"
        self._client.set_terminated(self._parent, status, self._last or None)
        return len(runs)

    def _describe(self, parent: "Run") -> None:
        """Notes, source and the saved view, on the parent and on the experiment's own page."""
        manifest = self.store.manifest()
        text = folder.note(self.store, TEXT)
        self._tag(parent, {NOTE: text} | folder.source(manifest))
        view = saved_view(
            self._parent, manifest.axes, manifest.table.statistic, parent.info.start_time
        )
        known = self._client.get_experiment(self._experiment).tags
        # the page of an experiment shows two lines, in which a heading would be too large
        for name, value in {NOTE: text.removeprefix("# "), VIEW: view}.items():
            if known.get(name) != value:
                self._client.set_experiment_tag(self._experiment, name, value)

    def _open_experiment(self, place: str | None) -> str:
        """The experiment of the sweep's name; one whose files lay elsewhere gives way."""
        name, client = self.manifest.name, self._client
        found = client.get_experiment_by_name(name)
        if found and found.lifecycle_stage == "deleted":
            client.restore_experiment(found.experiment_id)
        if found and place and found.artifact_location != place:  # the database was moved
            client.rename_experiment(found.experiment_id, f"{name} (moved {found.experiment_id})")
            client.delete_experiment(found.experiment_id)
            found = None
        if found:
            return str(found.experiment_id)
        tags = {"mlflow.experimentKind": "custom_model_development"}  # opens on runs, not traces
        return client.create_experiment(name, artifact_location=place, tags=tags)

    def _find_runs(self) -> None:
        token = None
        while token != "":
            page = self._client.search_runs([self._experiment], page_token=token)
            for run in page:
                tags = run.data.tags
                if tags.get(KIND) == "child" and RUN in tags:
                    self._runs[tags[RUN]], self._found[tags[RUN]] = run.info.run_id, run
                elif tags.get(KIND) == "parent":
                    self._parent = run.info.run_id
            token = page.token or ""

    def _open_parent(self) -> None:
        if not self._parent:
            starts = [points.started(e) for e in self.store.ledger().values()]
            tags = {SWEEP: self.manifest.name, KIND: "parent", NOTE: folder.note(self.store, TEXT)}
            made = self._create(self.manifest.name, tags, [s for s in starts if s])
            self._parent = made.info.run_id
        else:
            self._client.update_run(self._parent, "RUNNING")

    def _create(self, name: str, tags: Mapping[str, str], starts: list[int]) -> "Run":
        return self._client.create_run(
            self._experiment,
            start_time=min(starts, default=_now()),
            tags=dict(tags),
            run_name=name[:250],
        )

    def _child(self, run_id: str, rows: pd.DataFrame, ending: LedgerEntry | None) -> "Run":
        """The MLflow run of these rows, made if there is none or if it holds others."""
        if run_id in self._runs:
            run = self._found.pop(run_id, None) or self._client.get_run(self._runs[run_id])
            tags = run.data.tags
            logged = points.digest(rows, int(tags.get(LOGGED, -1)))
            if run.info.lifecycle_stage == "active" and tags.get(DIGEST, logged) == logged:
                return run
            if run.info.lifecycle_stage == "active":
                self._tag(run, {KIND: "replaced"})  # lest restoring the experiment revive it
                self._client.delete_run(run.info.run_id)
        start = points.started(ending) or _now() - points.lasted(ending, rows)
        tags = self._tags(run_id) | {"status": "running"}
        run = self._create(self._title(run_id), tags, [start])
        self._runs[run_id] = run.info.run_id
        return run

    def _labels(self, run_id: str) -> dict[str, Any]:
        if run_id not in self._places:  # a search adds runs while it goes
            self._places = {run_id: {}} | self.store.manifest().labels()
        return self._places[run_id]

    def _title(self, run_id: str) -> str:
        """Its labels: words stand for themselves, numbers with their axis."""
        labels = self._labels(run_id).items()
        return ", ".join(v if isinstance(v, str) else f"{k}={v}" for k, v in labels) or run_id

    def _tags(self, run_id: str) -> dict[str, str]:
        labels = {f"label.{axis}": str(value) for axis, value in self._labels(run_id).items()}
        own = {PARENT: self._parent, SWEEP: self.manifest.name, RUN: run_id, KIND: "child"}
        return labels | own | folder.source(self.manifest)

    def _stamp(self, run_id: str, rows: pd.DataFrame, ending: LedgerEntry) -> str:
        """A fingerprint of all that an ended run's projection is made from."""
        rest = [
            points.digest(rows, 2**31),
            ending.content(),
            self._tags(run_id),
            self._curve is None,
        ]
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:16]

    def _log_run(
        self,
        run: "Run",
        rows: pd.DataFrame,
        params: Mapping[str, Any],
        summary: Mapping[str, float],
        tags: Mapping[str, str],
    ) -> None:
        """Log the rounds that are new, and with the last of them all the rest, in one request."""
        from mlflow.entities import Param

        values = {_key(k): str(v)[:PARAM] for k, v in params.items()}
        fresh = [Param(k, v) for k, v in values.items() if k not in run.data.params]
        *batches, (metrics, marks) = self._rounds(run, rows)
        for batch, marked in batches:
            self._client.log_batch(run.info.run_id, batch, tags=_run_tags(marked))
        metrics += _fresh(run, summary)
        self._client.log_batch(run.info.run_id, metrics, fresh, _run_tags({**marks, **tags}))

    def _params(self, run_id: str, config: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration as in `config.<path>`, and the labels, which plots can be drawn by."""
        labels = {f"label.{axis}": value for axis, value in self._labels(run_id).items()}
        return labels | flatten(config or self._configs.get(run_id) or {})

    def _rounds(
        self, run: "Run", rows: pd.DataFrame
    ) -> list[tuple[list["Metric"], dict[str, str]]]:
        """The points of the rounds that are new, in batches, with tags that tell how far each is.

        At least one batch, which may be empty.
        """
        from mlflow.entities import Metric

        lines, times = points.curves(rows), points.elapsed(rows)
        lines = lines[lines.index > int(run.data.tags.get(LOGGED, -1))]
        batches = []
        for first in range(0, len(lines), ROUNDS_PER_BATCH):
            batch = lines.iloc[first : first + ROUNDS_PER_BATCH]
            metrics = [
                Metric(name, value, run.info.start_time + times[step], step)
                for step, name, value in points.finite(batch)
            ]
            last = int(batch.index[-1])
            batches.append((metrics, {LOGGED: str(last), DIGEST: points.digest(rows, last)}))
        return batches or [([], {})]

    def _log(self, run: "Run", values: Mapping[str, float]) -> None:
        """Log numbers that have no round, where they are not what they were."""
        self._client.log_batch(run.info.run_id, _fresh(run, values))

    def _tag(self, run: "Run", tags: Mapping[str, str]) -> None:
        self._client.log_batch(run.info.run_id, tags=_run_tags(tags))

    def _mark(self, run: "Run", status: str, end: int) -> None:
        """Say of a run that has not ended whether it runs or was interrupted."""
        if run.info.status == status:
            return
        if status == "RUNNING":
            self._client.update_run(run.info.run_id, status)
        else:
            self._client.set_terminated(run.info.run_id, status, end)
        self._tag(run, {"status": "running" if status == "RUNNING" else "interrupted"})

    def _files(self, run_id: str, rows: pd.DataFrame, ending: LedgerEntry) -> dict[str, bytes]:
        """Its configuration, and a picture if it has replicates: MLflow draws a single curve."""
        files = {"config.json": json.dumps(ending.config, indent=1).encode()}
        if self._curve and rows["replicate"].nunique() > 1:
            files["curve.png"] = self._curve(rows, self._title(run_id))
        return files

    def _upload(self, run: "Run", files: Mapping[str, bytes]) -> None:
        with TemporaryDirectory() as temporary:
            for name, content in files.items():
                (Path(temporary) / name).write_bytes(content)
            self._client.log_artifacts(run.info.run_id, temporary)


def _fresh(run: "Run", values: Mapping[str, float]) -> list["Metric"]:
    """Finite numbers that have no round, where they are not what the run has."""
    from mlflow.entities import Metric

    now, known = _now(), run.data.metrics
    fresh = {k: float(v) for k, v in values.items() if math.isfinite(v) and known.get(k) != v}
    return [Metric(_key(name), value, now, 0) for name, value in fresh.items()]


def _run_tags(tags: Mapping[str, str]) -> list["RunTag"]:
    from mlflow.entities import RunTag

    return [RunTag(_key(name), text[:TEXT]) for name, text in tags.items()]


def _now() -> int:
    return int(1000 * time.time())


def _key(name: str) -> str:
    """A name of the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", name)[:250]
