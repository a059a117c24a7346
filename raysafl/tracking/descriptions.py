"""What MLflow shows of a sweep besides rows: tags, files, description and saved view."""

import json
import math
import platform
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest, Table
from raysafl.storage.mlflow_view import VIEW_KEY, MlflowView
from raysafl.storage.store import RunResult, Store
from raysafl.tracking.metrics import allowed

# MLflow's largest heading overlaps itself where it is longer than a line.
HEADING = "### "
COMMIT = "mlflow.source.git.commit"


def ending_tags(run: RunResult) -> dict[str, str]:
    """Return the tags that say how a run has ended, or how far it is, and where."""
    end = run.worst
    tags = {"status": run.status.value, "reason": run.reason}
    tags |= {n: v for n in ("commit", "host", "device") if (v := getattr(end, n))}
    return tags | ({COMMIT: end.commit} if end.commit else {})


def source_tags(manifest: Manifest) -> dict[str, str]:
    """Return the tags of a run's source: the experiment file, otherwise the command."""
    name = manifest.source or manifest.command
    return {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"} if name else {}


def status_counts(ends: Collection[Status]) -> dict[str, str]:
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
    digits = ".2f" if table.unit == "%" else ".4g"
    number = f"{mean * table.scale:{digits}}"
    spread = f" ± {std * table.scale:{digits}}" if math.isfinite(std) else ""
    return {"result": f"{table.statistic} {number}{spread} {table.unit}".strip()}


def statistics_file(statistics: Mapping[str, tuple[float, float]]) -> bytes:
    """Write all final statistics of a run that are known, as JSON."""
    known = {
        name: {"mean": mean, "std": std if math.isfinite(std) else None}
        for name, (mean, std) in statistics.items()
    }
    return json.dumps(known, indent=1).encode()


def mlflow_status(ends: Collection[Status]) -> str:
    """Return MLflow's status of runs: a diverged run is a result, a failed one is not."""
    if any(end.unended for end in ends):
        return "KILLED"
    return "FINISHED" if all(end.decided for end in ends) else "FAILED"


def report_files(store: Store) -> list[Path]:
    """Return the files about the whole sweep that exist."""
    names = ["manifest.json", "runs.parquet", "table.md", "report.html"]
    names += sorted(file.name for file in store.path.glob("*.png"))
    return [file for name in names if (file := store.file(name)).is_file()]


def description(store: Store, limit: int, note: str, view: MlflowView) -> str:
    """Return the description of a sweep as Markdown, of at most `limit` characters.

    It is `table.md`, or the title and the notes as long as that does not exist. Below
    the title are links to all runs and to the report.

    Args:
        store: the folder of the sweep.
        limit: the largest number of characters.
        note: the last paragraph, which says what MLflow has of the sweep.
        view: where MLflow shows the sweep.
    """
    manifest = store.manifest()
    table = store.file("table.md")
    text = f"# {manifest.title or manifest.name}\n\n{manifest.notes}"
    if table.is_file():
        text = table.read_text()
    title, _, body = text.partition("\n")
    folder = store.path.resolve()
    links = (
        f"[All runs and their charts]({view.page.removeprefix('/')}) · "
        f"[Report]({view.report.removeprefix('/')}), also in the folder of the results: "
        f"`{folder / 'report.html'}`"
    )
    text = f"{HEADING}{title.removeprefix('# ')}\n\n{links}\n\n{body.strip()}".rstrip()
    end = f"\n\n{note}"
    if len(text) + len(end) > limit:
        end = f"\n\n(cut: the whole is in table.md and report.html, among the artifacts){end}"
        text = text[: limit - len(end)].rpartition("\n")[0]
    return text.rstrip() + end


# The tag in which MLflow stores the saved view.
VIEW = f"mlflow.sharedViewState.{VIEW_KEY}"


def saved_view(manifest: Manifest, created: int) -> str:
    """Return the saved view of MLflow's page of a sweep, as the content of its tag.

    Without it, the page shows the parent run alone, and no labels.

    Args:
        manifest: what the sweep is. The runs are ordered by what ranks them, and its
            labels are columns.
        created: the time of creation, in milliseconds since 1970.
    """
    ranked_by, lower_is_better = manifest.ranked_by
    metrics = dict.fromkeys([ranked_by, manifest.table.statistic])
    labels = [allowed(f"label.{axis}") for axis in manifest.axes]
    state = {
        "orderByKey": f"metrics.`{ranked_by}`",
        "orderByAsc": lower_is_better,
        "selectedColumns": [
            # MLflow puts metrics before parameters: more of them would hide the labels.
            *(f"metrics.`{name}`" for name in metrics),
            *(f"params.`{label}`" for label in labels),
            "tags.`result`",
            "tags.`status`",
        ],
        "hideEmptyCharts": True,
    }
    view = {"name": "Sweep", "createdAt": created, "updatedAt": created}
    return json.dumps(view | {"state": json.dumps(state)})


# Files of models up to this size are logged.
MOST_BYTES = 100_000_000
# The module that MLflow imports to load the artifact.
LOADER = "raysafl.kept.pyfunc"
# The folder in the artifact with the file of each replicate.
REPLICATES = "replicates"


def model_files(store: Store, run: RunResult) -> dict[str, bytes]:
    """Return the files of the artifact `model`; none without models, or if they are large."""
    cells = {r: end.cell for r, end in enumerate(run.cells) if end.kept}
    if not cells or sum(end.kept_bytes for end in run.cells) > MOST_BYTES:
        return {}
    # MLflow and torch take seconds to import, which runs without models need not pay for.
    # MLflow's `pyfunc.add_to_model` does the same, and importing that raises warnings.
    from mlflow.models import Model

    from raysafl.kept.pyfunc import signature_of

    files = {
        f"{REPLICATES}/{r}.safetensors": store.model(cell).read_bytes()
        for r, cell in cells.items()
    }
    first = next(iter(files.values()))
    model = Model(signature=signature_of(first))
    model.add_flavor(
        "python_function",
        loader_module=LOADER,
        data=REPLICATES,
        config={"replicate": None},
        python_version=platform.python_version(),
    )
    found = {"model/MLmodel": model.to_yaml().encode()}
    return found | {f"model/{name}": content for name, content in files.items()}
