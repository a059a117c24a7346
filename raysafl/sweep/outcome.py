"""What a sweep has come to."""

import base64
import io
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from rich.console import Console

from raysafl.core.text import count, were
from raysafl.storage.ledger import SEVERITY, Status
from raysafl.storage.manifest import Manifest, run_name
from raysafl.storage.store import Store
from raysafl.sweep.progress import short

if TYPE_CHECKING:
    import pandas as pd

    from raysafl.report.analysis.winner import Winner

# Columns of a table in a notebook, and how it stands there, as rich's own tables do.
NOTEBOOK = 115
TABLE = (
    '<pre style="white-space: pre; overflow-x: auto; line-height: normal">{code}</pre>'
)
# The figures of a sweep of which a notebook shows the first that there is.
FIGURES = ("curves.png", "heatmap.png")


@dataclass(frozen=True, repr=False)
class Outcome:
    """The result of a sweep. A notebook shows it as its table and its figure.

    Args:
        store: the sweep's folder.
        manifest: what the sweep is.
        runs: the table of `runs.parquet`.
        skipped: how many runs needed no new attempt.
        missing: how many runs have not ended.
        seconds: wall time.
        shown: the ids of the runs whose end was printed while the sweep ran.
    """

    store: Store
    manifest: Manifest
    runs: "pd.DataFrame"
    skipped: int
    missing: int
    seconds: float
    shown: frozenset[str] = frozenset()

    @property
    def bad(self) -> "pd.DataFrame":
        """The rows of the replicates that failed or diverged, with the reason."""
        return self.runs[
            self.runs["status"].isin([status for status in Status if status.bad])
        ]

    @property
    def ok(self) -> bool:
        """Whether every run ended, and none failed or diverged."""
        return self.bad.empty and not self.missing

    @property
    def best(self) -> "Winner":
        """The best run: its labels and configuration, what it was chosen by, its test value.

        It is chosen by the sweep's metric, or without one by what the runs are judged by,
        on the validation samples if every run has some.

        Raises:
            ValueError: of no run have all replicates finished.
        """
        # Imported here, because pandas takes some tenths of a second to import.
        from raysafl.report.analysis.winner import best_of

        return best_of(self.runs, self.manifest)

    def __repr__(self) -> str:
        of_runs = self.runs.groupby("run_id", sort=False)["status"]
        worst = of_runs.agg(lambda own: max(own, key=SEVERITY.index))
        ends = [f"{number} {status}" for status, number in worst.value_counts().items()]
        ends += [f"{self.missing} missing"] if self.missing else []
        name = self.manifest.name
        return f"Outcome of '{name}': {', '.join(ends)}; in {short(self.store.path)}"

    def _repr_html_(self) -> str:
        """Write the table and the main figure for a notebook."""
        from raysafl.report.pages.screen import screen

        parts = [f"<p>{escape(repr(self))}</p>"]
        if not self.runs.empty:
            console = Console(file=io.StringIO(), record=True, width=NOTEBOOK)
            console.print(screen(self.runs, self.manifest, NOTEBOOK))
            parts.append(console.export_html(inline_styles=True, code_format=TABLE))
        figures = (
            file for name in FIGURES if (file := self.store.file(name)).is_file()
        )
        for file in islice(figures, 1):
            data = base64.b64encode(file.read_bytes()).decode()
            parts.append(
                f'<img alt="{file.name}" style="max-width: 100%" '
                f'src="data:image/png;base64,{data}">'
            )
        return "\n".join(parts)

    def print_to(self, console: Console) -> None:
        """Print the table, what failed, and where the results are."""
        from raysafl.report.pages.screen import screen
        from raysafl.report.pages.sections import ui_call
        from raysafl.storage.mlflow_view import read_view

        if not self.runs.empty:
            console.print(screen(self.runs, self.manifest, console.width))
        self._print_bad_runs(console)
        if self.missing:
            console.print(
                f"not finished: {count(self.missing, 'run')}. Running the sweep again "
                "continues them"
            )
        skipped = f"{were(self.skipped)} finished before; "
        lines = [
            f"{skipped if self.skipped else ''}{self.seconds:.0f} s. "
            f"Results, table and curves: {short(self.store.path)}",
        ]
        if (view := read_view(self.store)) is not None:
            root = self.store.path.parent
            where = ui_call(view, root, short(root))
            if view.is_served:
                where = view.uri.rstrip("/") + view.page
            lines.append(f"Browse them: {where}")
        logs = self.store.logs
        if logs.is_dir():
            lines.append(f"Files of the callbacks: {short(logs)}")
        for line in lines:
            console.print(line, soft_wrap=True)

    def _print_bad_runs(self, console: Console) -> None:
        """Print each run that failed or diverged once, unless that was printed before."""
        labels = self.manifest.labels()
        for run_id, replicates in self.bad.groupby("run_id", sort=False):
            if run_id in self.shown:
                continue
            first = replicates.iloc[0]
            name = run_name(labels[str(run_id)], str(run_id))
            console.print(
                f"{name}: {first['status']}, {first['reason']}",
                style="red",
                soft_wrap=True,
            )
        if any(self.bad["status"] == Status.FAILED):
            console.print(
                "The traceback of each failed seed is in the field `traceback` of its entry in "
                f"{short(self.store.file('ledger.jsonl'))}",
                soft_wrap=True,
            )
