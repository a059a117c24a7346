"""What MLflow shows of a sweep besides rows: tags, counts, files and the description."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping

from raysafl.storage.ledger import LedgerEntry, Status
from raysafl.storage.manifest import Manifest, Table
from raysafl.storage.mlflow_view import MlflowView
from raysafl.storage.paths import Location
from raysafl.storage.store import Store

HEADING = "### "
COMMIT = "mlflow.source.git.commit"
# MLflow's page of an experiment loads so many runs at first.
FIRST_RUNS = 100


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


def status_counts(ends: Iterable[Status]) -> dict[str, str]:
    """Count the runs that ended with each status, as tags of the parent run.

    As metrics, MLflow would draw a bar for each number.
    """
    counts = Counter(ends)
    return {f"runs.{s}": str(counts[s]) for s in Status if not s.unended}


def result_tag(
    statistics: Mapping[str, tuple[float, float]], table: Table
) -> dict[str, str]:
    """Return a run's number in the sweep's table, with its spread, as a tag.

    Args:
        statistics: mean and standard deviation over replicates by name.
        table: the sweep's table.
    """
    mean, std = statistics.get(table.statistic, (math.nan, math.nan))
    if not math.isfinite(mean):
        return {}
    form = ".2f" if table.unit == "%" else ".4g"
    own = f"{mean * table.scale:{form}}"
    spread = f" ± {std * table.scale:{form}}" if math.isfinite(std) else ""
    return {"result": f"{table.statistic} {own}{spread} {table.unit}".strip()}


def statistics_file(statistics: Mapping[str, tuple[float, float]]) -> bytes:
    """Write all final statistics of a run that are known, as JSON."""
    known = {
        name: {"mean": mean, "std": std if math.isfinite(std) else None}
        for name, (mean, std) in statistics.items()
    }
    return json.dumps(known, indent=1).encode()


def mlflow_status(ends: Iterable[Status]) -> str:
    """Return MLflow's status of runs that ended: a diverged run is a result, a failed one not."""
    return "FINISHED" if all(end.decided for end in ends) else "FAILED"


def report_files(store: Store) -> list[Location]:
    """Return the files about the whole sweep that exist."""
    names = ["manifest.json", "runs.parquet", "table.md", "report.html"]
    names += sorted(file.name for file in store.path.glob("*.png"))
    return [file for name in names if (file := store.file(name)).is_file()]


def description(store: Store, limit: int, note: str, view: MlflowView) -> str:
    """Return the description of a sweep as Markdown, of at most `limit` characters.

    It is `table.md`, or the title and the notes as long as that does not exist. Below
    the title are links to the report and to all runs and their charts.

    Args:
        store: the folder of the sweep.
        limit: the largest number of characters.
        note: the last paragraph, which says what MLflow has of the sweep.
        view: where MLflow shows the sweep.
    """
    manifest = store.manifest()
    table = store.file("table.md")
    parts = [f"# {manifest.title or manifest.name}", manifest.notes]
    text = table.read_text() if table.is_file() else "\n\n".join(filter(None, parts))
    title, body = _title_and_body(text)
    if len(manifest.entries) > FIRST_RUNS and title:
        title += (
            f" ({len(manifest.entries):,} runs: this page begins with the best {FIRST_RUNS}, and "
            "*Load more* below them adds others)"
        )
    text = "\n\n".join(filter(None, [title, _links(store, view), body]))
    end = f"\n\n{note}"
    if len(text) + len(end) > limit:
        cut = "\n\n(cut: the whole is in table.md and report.html, among the artifacts)"
        end = cut + end
        text = text[: limit - len(end)].rpartition("\n")[0]
    return text.rstrip() + end


def _title_and_body(text: str) -> tuple[str, str]:
    """Split Markdown behind its title; without a title, all of it is the body."""
    if not text.startswith("# "):
        return "", text
    title, _, body = text.partition("\n")
    # MLflow's largest heading overlaps itself where it is longer than a line.
    return HEADING + title.removeprefix("# "), body.strip()


def _links(store: Store, view: MlflowView) -> str:
    """Write links to a sweep's report and charts, and where its folder is."""
    folder = store.path if store.is_remote else store.path.resolve()
    page = view.page.removeprefix("/")
    report = view.report.removeprefix("/")
    return (
        f"[All runs and their charts]({page}) · [Report]({report}), also in the folder of the "
        f"results: `{folder / 'report.html'}`"
    )
