"""The table of a sweep as `table.md` has it, without a folder."""

import pandas as pd

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages import markdown as writer
from raysafl.report.write import results_document
from raysafl.storage.manifest import Manifest


def markdown(runs: pd.DataFrame, manifest: Manifest) -> str:
    """Return the text of `table.md` for the rows of `runs.parquet`."""
    return writer.markdown(results_document(Numbers.of(runs, manifest)))
