"""The table of a sweep as `table.md` and a terminal have it, without a folder."""

import io

import pandas as pd
from rich.console import Console

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages import document
from raysafl.report.pages.screen import screen
from raysafl.report.write import results_document
from raysafl.storage.manifest import Manifest


def markdown(runs: pd.DataFrame, manifest: Manifest) -> str:
    """Return the text of `table.md` for the rows of `runs.parquet`."""
    return document.markdown(results_document(Numbers.of(runs, manifest)))


def on_screen(runs: pd.DataFrame, manifest: Manifest, width: int = 100) -> str:
    """Return what a terminal of this width shows."""
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(screen(runs, manifest, width))
    return console.export_text()
