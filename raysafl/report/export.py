"""Tables and figures of a sweep that go into a paper as they are."""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from raysafl.core.text import nearest
from raysafl.report.analysis.choice import Choice
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.figures.listed import FIGURES, page_names
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import FileKind, Style, to_file
from raysafl.report.figures.venues import USUAL, paper_style
from raysafl.report.pages.csv import as_csv
from raysafl.report.pages.document import Grid
from raysafl.report.pages.latex import latex
from raysafl.report.pages.markdown import pipe_table
from raysafl.report.pages.over_settings import over_settings
from raysafl.report.pages.sections import entries_text, marks_text, pivot
from raysafl.report.wording import as_markdown, legend, spread_note, without_markup
from raysafl.storage.files import atomic_write
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location, parse_location
from raysafl.storage.statistics import final_of

KINDS: tuple[FileKind, ...] = ("pdf", "svg", "png")
TEXTS = ("tex", "md", "csv")
CAPTIONS = "captions.md"


@dataclass(frozen=True)
class Figures:
    """The table and the figures of a sweep, as `raysafl export` writes them.

    Args:
        runs: rows as in `runs.parquet`, which may have runs that have not ended.
        sweep: the whole sweep.
        rounds: rows as in `rounds/`.
        clients: rows as in `clients/`.
        choice: what is shown.
        style: how large it is.
    """

    runs: pd.DataFrame
    sweep: Manifest
    rounds: pa.Table
    clients: pa.Table
    choice: Choice = field(default_factory=Choice)
    style: Style = field(default_factory=paper_style)

    def __repr__(self) -> str:
        return (
            f"Figures of '{self.sweep.name}': draw(name) returns the pages of "
            f"{', '.join(FIGURES)}; write(folder) writes all"
        )

    def choose(self, width: str | float = USUAL, **choice: Any) -> "Figures":
        """Choose what is shown, and how wide.

        Args:
            width: inches; or a venue, as `icml`, or `icml:2` for both columns.
            choice: the arguments of `raysafl.report.analysis.choice.Choice`.

        Raises:
            ValueError: a name is unknown; the message has the nearest one.
        """
        style = paper_style(str(width))
        asked = Choice(**choice)
        # Mistakes are told here.
        asked.of(self.sweep, map(str, self.runs))
        return replace(self, choice=asked, style=style)

    @cached_property
    def manifest(self) -> Manifest:
        """The sweep as it is shown."""
        return self.choice.of(self.sweep, map(str, self.runs))

    @cached_property
    def study(self) -> Study:
        """What the figures are drawn from."""
        ids = [entry.run_id for entry in self.manifest.entries]
        # As in the report, what has not ended has no numbers yet.
        ended = [status for status in Status if not status.unended]
        shown = self.runs["run_id"].isin(ids) & self.runs["status"].isin(ended)
        numbers = Numbers.of(self.runs[shown], self.manifest)
        return Study.of(numbers, self.rounds, self.clients)

    def draw(self, name: str) -> list[Figure]:
        """Draw the pages of `curves`, `heatmap`, `served` ...; none where there are no numbers.

        Raises:
            ValueError: there is no such figure.
        """
        if name not in FIGURES:
            raise ValueError(f"there is no figure '{name}': {nearest(name, FIGURES)}")
        with self.style.used():
            return FIGURES[name].draw(self.study, self.style)

    def files_of_table(self) -> dict[str, str]:
        """Return the table as LaTeX, Markdown and CSV, by the names of the files."""
        numbers = self.study.numbers
        across = numbers.layout.across
        # Beside a chosen round the last one would make the table too wide.
        last = f"mean.{final_of(numbers.manifest.table.statistic)}"
        entries = numbers.part.entries.drop(columns=last, errors="ignore")
        grid = pivot(replace(numbers.part, entries=entries), numbers.marks)
        axis = across[0] if len(across) == 1 else ""
        return {
            "table.tex": latex(grid, axis, self._caption()),
            "table.md": pipe_table(grid.head, grid.rows, grid.heads) + "\n",
            "table.csv": as_csv(self._long()),
        }

    def files_of_methods(self) -> dict[str, str]:
        """Return the table of the methods over all settings; none where there is none."""
        blocks = over_settings(self.study.numbers)
        if not blocks:
            return {}
        about, grid, *_ = blocks
        assert isinstance(about, str) and isinstance(grid, Grid)
        about = without_markup(about)
        means = self.study.numbers.methods.interquartile_means
        return {
            "methods.tex": latex(grid, "", about),
            "methods.md": f"{pipe_table(grid.head, grid.rows, grid.heads)}\n\n"
            f"{as_markdown(about)}\n",
            "methods.csv": as_csv(means),
        }

    def files(self) -> dict[str, bytes]:
        """Return the content of all files by name: tables, each figure, their captions."""
        captions = [f"- table: {as_markdown(self._caption())}"]
        texts = self.files_of_table() | self.files_of_methods()
        made = {name: text.encode() for name, text in texts.items()}
        if "methods.md" in texts:
            captions.append(f"- methods: {texts['methods.md'].splitlines()[-1]}")
        for kind, listed in FIGURES.items():
            pages = self.draw(kind)
            about = listed.about(listed.caption, self.manifest)
            for name, page in zip(page_names(kind, len(pages)), pages, strict=True):
                said = as_markdown(f"{about} {page.get_label()}")
                captions.append(f"- {name}: {said}")
                with self.style.used():
                    made |= {f"{name}.{own}": to_file(page, own) for own in KINDS}
        return made | {CAPTIONS: "\n".join([*captions, ""]).encode()}

    def write(self, to: str | Location) -> list[Location]:
        """Write all files into a folder, after all of them are made.

        Files of an earlier export, which its `captions.md` names, are deleted if they are
        not made again. No other file is touched.

        Raises:
            ValueError: the folder is a file, or the sweep has no numbers yet.
        """
        folder = parse_location(to)
        if folder.is_file():
            raise ValueError(f"{folder} is a file: give a folder to write to")
        if self.study.numbers.runs.empty:
            raise ValueError(f"no run of {self.sweep.name} that is shown has ended yet")
        made = self.files()
        listed = folder / CAPTIONS
        before = listed.read_text() if listed.is_file() else ""
        for name in re.findall(r"^- ([a-z_]+(?:-\d+)?): ", before, re.MULTILINE):
            for kind in (*KINDS, *TEXTS):
                if f"{name}.{kind}" not in made:
                    (folder / f"{name}.{kind}").unlink(missing_ok=True)
        for name, content in made.items():
            atomic_write(folder / name, content)
        return [folder / name for name in made]

    def _caption(self) -> str:
        """Say what the numbers of the table are."""
        numbers = self.study.numbers
        note = as_markdown(numbers.part.note)
        texts = [entries_text(numbers), note, marks_text(numbers)]
        texts.append(legend(numbers.part.entries))
        texts.append(spread_note(numbers.entries, numbers.manifest.table))
        return without_markup(" ".join(filter(None, texts)))

    def _long(self) -> pd.DataFrame:
        """Return a row for each entry, with its numbers as they are."""
        numbers = self.study.numbers
        name = numbers.manifest.table.statistic
        entries = numbers.part.entries
        columns = {f"label.{axis}": axis for axis in numbers.layout.axes}
        columns |= {f"mean.{name}": "mean", f"std.{name}": "std"}
        columns |= {"half.mean": "half_interval", "replicates": "replicates"}
        return (
            entries[list(columns)]
            .assign(
                statistic=name,
                best=entries["run_id"].isin(numbers.marks.best),
                not_told_apart=entries["run_id"].isin(numbers.marks.close),
            )
            .rename(columns=columns)
        )
