"""What MLflow shows of a sweep besides rows: tags, counts, files and the description."""

from collections import Counter
from collections.abc import Iterable

from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location
from raysafl.storage.store import Store

COMMIT = "mlflow.source.git.commit"


def begun_runs(store: Store, planned: Iterable[str], ended: Iterable[str]) -> list[str]:
    """Return the runs that have rows or have ended, those of the manifest first, in order."""
    found = store.begun() | set(ended)
    ordered = [run_id for run_id in planned if run_id in found]
    return ordered + sorted(found.difference(ordered))


def ledger_tags(entry: LedgerEntry) -> dict[str, str]:
    """Return the tags that a ledger entry gives.

    The reason is always among them, if only as an empty text, so that it overwrites the
    reason of an earlier try.
    """
    names = ("status", "reason", "commit", "host", "device")
    given = {name: str(value) for name in names if (value := getattr(entry, name))}
    commit = {COMMIT: entry.commit} if entry.commit else {}
    return {"reason": ""} | given | commit


def source_tags(manifest: Manifest) -> dict[str, str]:
    """Return the tags of a run's source: the experiment file, otherwise the command."""
    name = manifest.source or manifest.command
    return {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"} if name else {}


def status_counts(ends: Iterable[Status]) -> dict[str, float]:
    """Count the runs that ended with each status."""
    counts = Counter(ends)
    return {f"runs.{s}": float(counts[s]) for s in Status}


def mlflow_status(ends: Iterable[Status]) -> str:
    """Return MLflow's status of runs that ended: a diverged run is a result, a failed one not."""
    return "FINISHED" if all(end.decided for end in ends) else "FAILED"


def report_files(store: Store) -> list[Location]:
    """Return the files about the whole sweep that exist."""
    names = ["manifest.json", "runs.parquet", "table.md", "report.html"]
    names += sorted(file.name for file in store.path.glob("*.png"))
    return [file for name in names if (file := store.file(name)).is_file()]


def description(store: Store, limit: int, note: str) -> str:
    """Return the description of a sweep as Markdown, of at most `limit` characters.

    It is `table.md`, or the title and the notes as long as that does not exist.

    Args:
        store: the folder of the sweep.
        limit: the largest number of characters.
        note: the last paragraph, which says what MLflow has of the sweep.
    """
    manifest = store.manifest()
    table = store.file("table.md")
    parts = [f"# {manifest.title or manifest.name}", manifest.notes]
    text = table.read_text() if table.is_file() else "\n\n".join(filter(None, parts))
    end = f"\n\n{note}"
    if len(text) + len(end) > limit:
        cut = "\n\n(cut: the whole is in table.md and report.html, among the artifacts)"
        end = cut + end
        text = text[: limit - len(end)].rpartition("\n")[0]
    return text.rstrip() + end
