"""From a sweep's folder to its table, curves and heat map.

Reads Parquet, writes Markdown and PNG; knows neither Ray nor torch.
"""

import pandas as pd

from raysafl.manifest import Manifest
from raysafl.place import Place
from raysafl.report.curves import curve_of_run, curves
from raysafl.report.heatmap import heatmap
from raysafl.report.numbers import aggregate
from raysafl.report.screen import screen
from raysafl.report.table import markdown
from raysafl.store import Store, atomic_write

__all__ = ["aggregate", "curve_of_run", "curves", "heatmap", "load", "markdown", "screen"]
__all__ += ["write_report"]


def load(store: Store) -> tuple[Manifest, pd.DataFrame, pd.DataFrame]:
    """A sweep's manifest, its `rounds/` and its `runs.parquet`.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    return store.manifest(), store.rounds(), store.runs()


def write_report(store: Store) -> list[Place]:
    """Write `table.md`, `curves.png` (`curves-2.png`, ... if many) and, if apt, `heatmap.png`.

    Works while runs are missing. Figures of an earlier report that are not made again go.

    Returns:
        The files written, the table first.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    manifest, rounds, runs = load(store)
    files = {"table.md": markdown(runs, manifest).encode()}
    for i, page in enumerate(curves(rounds, manifest, runs)):
        files[f"curves-{i + 1}.png" if i else "curves.png"] = page
    heat = heatmap(aggregate(runs, manifest), manifest)
    if heat is not None:
        files["heatmap.png"] = heat
    for old in [*store.path.glob("curves-[0-9]*.png"), store.path / "heatmap.png"]:
        if old.name not in files:
            old.unlink(missing_ok=True)
    for name, content in files.items():
        atomic_write(store.path / name, content)
    return [store.path / name for name in files]
