"""Figures of sweeps whose rows are planted, without a folder."""

import io
from typing import Any

import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure
from PIL import Image

from raysafl.report.analysis.numbers import Numbers, Study
from raysafl.report.figures.style import to_png
from raysafl.storage.manifest import Manifest
from raysafl.storage.rows import CLIENTS, ROUNDS, of_owners


def study_of(
    manifest: Manifest,
    rounds: pd.DataFrame | list[dict[str, Any]] = (),  # type: ignore[assignment]
    runs: pd.DataFrame | None = None,
) -> Study:
    """What the figures of a sweep with these rows are drawn from."""
    empty = of_owners(ROUNDS.empty_table(), {})
    frame = pd.DataFrame(rounds)
    missing = [name for name in empty.column_names if name not in frame]
    frame = frame.assign(**dict.fromkeys(missing))
    table = pa.Table.from_pandas(frame, preserve_index=False) if len(frame) else empty
    if runs is None:
        runs = pd.DataFrame(columns=["run_id", "status", "reason"])
    return Study(
        Numbers.of(runs, manifest), table, of_owners(CLIENTS.empty_table(), {})
    )


def drawn(figure: Figure | None) -> Figure:
    """The figure, of which the sweep must have numbers."""
    assert figure is not None
    return figure


def picture_of(figure: Figure) -> Image.Image:
    """The picture of a figure, as the report has it."""
    return Image.open(io.BytesIO(to_png(figure)))
