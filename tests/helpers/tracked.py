"""Small sweeps with invented rows, and what MLflow holds of them."""

from pathlib import Path
from typing import Any

from helpers.made import end
from raysafl.storage.manifest import Entry, Manifest, Table
from raysafl.storage.store import Store
from raysafl.tracking.client import connect, default_uri

A, B = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
CONFIG = {
    "rounds": 5,
    "replicates": 2,
    "algorithm": {"kind": "SAFARI", "client_prob": 0.5},
    "note": "x" * 7000,
}
# What the ledger says of each seed.
ORIGIN = {"seconds": 6.25, "commit": "abc123", "host": "box", "device": "cpu"}


def sweep(path: Path, name: str = "demo") -> Store:
    """A sweep of two runs of which nothing has run."""
    store = Store(path)
    store.create()
    entries = [
        Entry(run_id=run_id, labels={"q": q}, config={**CONFIG, "seed": seed})
        for run_id, q, seed in ((A, 0.5, 0), (B, 1.0, 100))
    ]
    manifest = Manifest(
        name=name,
        title="A demo",
        axes=["q"],
        entries=entries,
        table=Table(rows=["q"]),
        command="raysafl run demo",
    )
    store.write_manifest(manifest)
    return store


def with_run(store: Store, run_id: str) -> None:
    """Add a run without labels to a sweep."""
    config = {**CONFIG, "seed": 200}
    entry = Entry(run_id=run_id, labels={}, config=config)
    store.write_manifest(store.manifest().extended([entry]))


def with_config(store: Store, **changes: Any) -> None:
    """Change the configuration of both runs of a sweep, which keep their ids."""
    manifest = store.manifest()
    entries = [e.replace(config={**e.config, **changes}) for e in manifest.entries]
    store.write_manifest(manifest.replace(entries=entries))


def rows(first: int, last: int, **changes: Any) -> list[dict[str, Any]]:
    """Rounds of two replicates with accuracies round/10 and round/10 + 0.2."""
    plain: dict[str, Any] = {"kind": "client", "cohorts": [[0, 3]], "trained": [True]}
    plain |= {"enforced": [False], "test_loss": 1.0, "train_loss": 2.0}
    plain |= {"train_accuracy": 0.5, "server_rounds": 1, "steps": 10, "bytes_down": 400}
    plain |= {"bytes_up": 100, "seconds": 2.5}
    return [
        {
            **plain,
            "replicate": k,
            "seed": k,
            "round": t,
            "test_accuracy": t / 10 + k / 5,
            **changes,
        }
        for k in range(2)
        for t in range(first, last)
    ]


def complete(store: Store, **changes: Any) -> None:
    """Both runs run to their end, of five rounds."""
    for run_id in (A, B):
        end(store, run_id, rows(0, 5, **changes), **ORIGIN)


def uri_of(store: Store) -> str:
    return default_uri(store.path.parent)


class View:
    """What MLflow holds."""

    def __init__(self, uri: str, name: str = "demo") -> None:
        self.client = connect(uri)
        experiment = self.client.get_experiment_by_name(name)
        assert experiment
        self.experiment = experiment
        found = list(self.client.search_runs([experiment.experiment_id]))
        self.parents = [r for r in found if r.data.tags["raysafl.kind"] == "parent"]
        own = [r for r in found if r.data.tags["raysafl.kind"] == "child"]
        self.children = {r.data.tags["raysafl.run_id"]: r for r in own}
        assert len(found) == len(self.parents) + len(self.children)

    def points(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        history = self.client.get_metric_history(
            self.children[run_id].info.run_id, metric
        )
        return sorted((point.step, point.value) for point in history)

    def all_points(self) -> int:
        return sum(
            len(self.points(run_id, metric))
            for run_id, run in self.children.items()
            for metric in run.data.metrics
        )

    def files(self, mlflow_id: str) -> list[str]:
        return [file.path for file in self.client.list_artifacts(mlflow_id)]
