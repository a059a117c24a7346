"""Read the committed results in results/measured once, for these scripts."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.evidence import judged
from raysafl.storage.manifest import Manifest
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.store import Store, find_sweeps

ROOT = Path(__file__).parents[2]  # of the repository
MEASURED = ROOT / "results" / "measured"
PAPERS = ("safari", "fast", "fsl")
# Files whose sweeps are drawn by `raysafl data show`: figures of data and cohorts.
PICTURES = ("fast/figure1.py", "fast/figure2.py")
# Scales of folders in results/measured, the most telling first; scale `paper` has no suffix.
SUFFIXES = ("", "-window", "-medium", "-small")


class MeasuredSweep(NamedTuple):
    """What results/measured holds of one sweep."""

    manifest: Manifest
    runs: pd.DataFrame  # a row per run and replicate, as in runs.parquet
    store: Store


def sweep_files() -> list[Path]:
    """Return the files that define sweeps."""
    return [
        file
        for file in sorted((ROOT / "experiments").glob("*/*.py"))
        if "\nSWEEP = " in file.read_text()
    ]


def measured_folders(file: str) -> list[str]:
    """Return the folders of an experiment in results/measured, in the order of `SUFFIXES`.

    Args:
        file: Its path below `experiments`, with or without `.py`.
    """
    name = file.removesuffix(".py").removeprefix("studies/").replace("/", "_")
    return [f"{name}{suffix}" for suffix in SUFFIXES if f"{name}{suffix}" in sweeps()]


def experiment_file(name: str) -> str:
    """Return the path of the file that defines a sweep, relative to the repository.

    The name of a paper's sweep begins with the paper (`safari_table8_mnist`), where the
    path has a folder (`experiments/safari/table8_mnist.py`). All other sweeps are
    defined in `experiments/studies`.
    """
    paper, _, item = name.partition("_")
    if paper in PAPERS and (ROOT / "experiments" / paper / f"{item}.py").is_file():
        return f"experiments/{paper}/{item}.py"
    return f"experiments/studies/{name}.py"


@cache
def sweeps() -> dict[str, MeasuredSweep]:
    """Return every sweep in results/measured by its folder's name, in natural order."""
    stores = sorted(
        find_sweeps(MEASURED), key=lambda store: _natural_order(store.path.name)
    )
    return {
        store.path.name: MeasuredSweep(store.manifest(), make_runs_table(store), store)
        for store in stores
    }


def _natural_order(name):
    """Return a sort key that puts table 10 behind table 9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part) if part.isdigit() else 0, part) for part in parts]


@cache
def compared(name: str, statistic: str = "") -> tuple[pd.DataFrame, Manifest]:
    """Return a sweep's entries beside the printed numbers, and their manifest.

    Args:
        name: The sweep's folder in results/measured.
        statistic: The statistic to compare; empty for the table's own.
    """
    sweep = sweeps()[name]
    runs, manifest = improvements(sweep.runs, sweep.manifest)
    if statistic:
        manifest = manifest.replace(table=manifest.table.replace(statistic=statistic))
    return judged(runs, manifest), manifest
