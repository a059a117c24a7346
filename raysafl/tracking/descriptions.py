"""What a sweep's folder tells besides rows: how runs ended, what is written about the whole."""

from collections.abc import Iterable

from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location
from raysafl.storage.store import Store

COMMIT = "mlflow.source.git.commit"


def begun(store: Store, planned: Iterable[str], ended: Iterable[str]) -> list[str]:
    """The runs that have rows or have ended: those of the manifest first, in its order."""
    found = store.begun() | set(ended)
    ordered = [run_id for run_id in planned if run_id in found]
    return ordered + sorted(found.difference(ordered))


def facts(entry: LedgerEntry) -> dict[str, str]:
    """What of a ledger entry becomes a tag; no reason overwrites that of an earlier try."""
    names = ("status", "reason", "commit", "host", "device")
    given = {name: str(value) for name in names if (value := getattr(entry, name))}
    commit = {COMMIT: entry.commit} if entry.commit else {}
    return {"reason": ""} | given | commit


def source(manifest: Manifest) -> dict[str, str]:
    """What MLflow shows as a run's source: the experiment file, else the command."""
    told = manifest.source or manifest.command
    return {"mlflow.source.name": told, "mlflow.source.type": "LOCAL"} if told else {}


def counts(entries: Iterable[LedgerEntry]) -> dict[str, float]:
    """How many runs ended in which way."""
    ends = [entry.status for entry in entries]
    return {f"runs.{s}": float(ends.count(s)) for s in Status}


def outcome(entries: Iterable[LedgerEntry]) -> str:
    """MLflow's word for how runs ended: a diverged run is a result, a failed one is not."""
    return "FAILED" if any(e.status is Status.FAILED for e in entries) else "FINISHED"


def papers(store: Store) -> list[Location]:
    """The files about the whole sweep, as far as they are there."""
    names = ["manifest.json", "runs.parquet", "table.md", "report.html"]
    names += sorted(file.name for file in store.path.glob("*.png"))
    return [file for name in names if (file := store.file(name)).is_file()]


def note(store: Store, limit: int) -> str:
    """The sweep in Markdown: `table.md`, before it is there title and notes."""
    manifest, table = store.manifest(), store.file("table.md")
    parts = [f"# {manifest.title or manifest.name}", manifest.notes]
    text = table.read_text() if table.is_file() else "\n\n".join(filter(None, parts))
    end = "\n\n(cut: the whole is in table.md and report.html, among the artifacts)"
    return text if len(text) <= limit else text[: limit - len(end)].rpartition("\n")[0] + end
