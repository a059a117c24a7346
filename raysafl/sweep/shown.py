"""How a sweep and its outcome are shown: on a terminal, in a log file and in a notebook."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Screen

from raysafl.storage.ledger import Status
from raysafl.sweep.progress import run_name, short

if TYPE_CHECKING:
    from raysafl.sweep.definition import Sweep
    from raysafl.sweep.outcome import Outcome

# Columns of a table that never has to be folded.
ANY_WIDTH = 10_000
# Largest number of labels of an axis that a notebook shows.
MOST_LABELS = 12
# The figures of a sweep of which a notebook shows the first that there is.
FIGURES = ("curves.png", "heatmap.png")


def print_outcome(outcome: "Outcome", console: Console) -> None:
    """Print the table of a sweep, what failed, and where the results are."""
    # Imported here, as `Sweep` shows itself without the report.
    from raysafl.report.pages.screen import screen

    store = outcome.store
    if not outcome.runs.empty:
        console.print(screen(outcome.runs, outcome.manifest, console.width))
    _print_bad_runs(outcome, console)
    if outcome.missing:
        console.print(
            f"{outcome.missing} runs are not finished: running the sweep again continues "
            "them"
        )
    skipped = f"{outcome.skipped} runs were finished before; "
    lines = [
        f"{skipped if outcome.skipped else ''}{outcome.seconds:.0f} s. "
        f"Results, table and curves: {short(store.path)}",
        f"Browse them: raysafl ui {short(store.path.parent)}",
    ]
    logs = store.logs
    if logs.is_dir():
        lines.append(f"Files of the callbacks: {short(logs)}")
    for line in lines:
        console.print(line, soft_wrap=True)


def _print_bad_runs(outcome: "Outcome", console: Console) -> None:
    """Print each run that failed or diverged once, unless that was printed before."""
    labels = outcome.manifest.labels()
    bad = outcome.bad.groupby("run_id", sort=False)
    for run_id, replicates in bad:
        if run_id in outcome.shown:
            continue
        first = replicates.iloc[0]
        name = run_name(labels[str(run_id)], str(run_id))
        console.print(
            f"{name}: {first['status']}, {first['reason']}",
            style="red",
            soft_wrap=True,
        )
    if any(outcome.bad["status"] == Status.FAILED):
        console.print(
            "The traceback of each failed run is in the field `traceback` of its entry in "
            f"{short(outcome.store.path / 'ledger')}, and in MLflow",
            soft_wrap=True,
        )


def outcome_text(outcome: "Outcome") -> str:
    """Describe the outcome of a sweep in one line."""
    statuses = outcome.runs.drop_duplicates("run_id")["status"].value_counts()
    ends = [f"{number} {status}" for status, number in statuses.items()]
    ends += [f"{outcome.missing} missing"] if outcome.missing else []
    name = outcome.manifest.name
    return f"Outcome of '{name}': {', '.join(ends)}; in {short(outcome.store.path)}"


def outcome_html(outcome: "Outcome") -> str:
    """Write the table and the main figure of a sweep as HTML for a notebook."""
    from raysafl.report.pages.screen import screen

    parts = [f"<p>{escape(outcome_text(outcome))}</p>"]
    if not outcome.runs.empty:
        parts.append(_html_of(screen(outcome.runs, outcome.manifest, ANY_WIDTH)))
    for name in FIGURES:
        file = outcome.store.file(name)
        if file.is_file():
            data = base64.b64encode(file.read_bytes()).decode()
            parts.append(
                f'<img alt="{name}" style="max-width: 100%" '
                f'src="data:image/png;base64,{data}">'
            )
            break
    return "\n".join(parts)


def sweep_text(sweep: "Sweep") -> str:
    """Describe a sweep in one line."""
    runs = sweep.labelled() if sweep.is_grid else {}
    number = len(runs) or sweep.num_samples
    size = f"{number} runs" if runs else f"{number} sampled runs"
    scale = "" if sweep.scale == "paper" else f", scale {sweep.scale}"
    return f"Sweep '{sweep.name}': {size} over {', '.join(sweep.axis_names)}{scale}"


def sweep_html(sweep: "Sweep") -> str:
    """Write what a sweep will run as HTML for a notebook: its axes and their labels."""
    values = dict(_labels_of(sweep))
    rows = [[axis, _listed(labels)] for axis, labels in values.items()]
    head = ["axis", "labels"]
    title = f"<b>{escape(sweep.title)}</b><br>" if sweep.title else ""
    notes = f"<p>{escape(sweep.notes)}</p>" if sweep.notes else ""
    text = f"<p>{title}{escape(sweep_text(sweep))}</p>"
    return f"{text}\n{_table(head, rows, 2)}{notes}"


def _labels_of(sweep: "Sweep") -> Iterable[tuple[str, list[Any]]]:
    """Yield each axis of a sweep with its labels, or with how they are sampled."""
    if not sweep.is_grid:
        for axis, domain in sweep.space.items():
            grid = domain.get("grid_search") if isinstance(domain, dict) else None
            yield axis, list(grid) if grid is not None else [domain]
        return
    keys = list(sweep.labelled())
    for i, axis in enumerate(sweep.axis_names):
        yield axis, list(dict.fromkeys(key[i] for key in keys))


def _listed(values: Sequence[Any]) -> str:
    more = len(values) - MOST_LABELS
    end = f", and {more} more" if more > 0 else ""
    return ", ".join(map(_described, values[:MOST_LABELS])) + end


def _described(value: Any) -> str:
    """Return a label, or a domain of Tune's as it was written."""
    return str(getattr(value, "domain_str", value))


def _html_of(screen: Screen) -> str:
    """Write a table for a terminal as a table in HTML."""
    head = [str(column.header) for column in screen.columns]
    left = sum(column.justify == "left" for column in screen.columns)
    rows = zip(*(column.cells for column in screen.columns), strict=True)
    table = _table(head, [list(map(str, row)) for row in rows], left)
    title = f"<p><b>{escape(str(screen.title))}</b></p>"
    caption = escape(str(screen.caption)).replace("\n", "<br>")
    return f"{title}\n{table}\n<p><small>{caption}</small></p>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Write a table, its first `left` columns flush left, the others flush right."""

    def cells(tag: str, texts: Sequence[str]) -> str:
        styles = ["left" if i < left else "right" for i in range(len(texts))]
        return "".join(
            f'<{tag} style="text-align: {style}">{_lines(text)}</{tag}>'
            for style, text in zip(styles, texts, strict=True)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f"<table><thead><tr>{cells('th', head)}</tr></thead>\n"
        f"<tbody>{body}</tbody></table>"
    )


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")
