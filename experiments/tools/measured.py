"""Read the committed results in results/measured once, for these scripts."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from experiments.papercheck.comparison import Comparison
from experiments.papercheck.judging import Compared
from raysafl.storage.manifest import Entry, Manifest
from raysafl.storage.runs_table import make_runs_table
from raysafl.storage.store import Store, find_sweeps

ROOT = Path(__file__).parents[2]  # of the repository
MEASURED = ROOT / "results" / "measured"
PAPERS = ("safari", "fast", "fsl", "fedawe")
# Files whose sweeps are drawn by `raysafl data show`: figures of data and cohorts.
PICTURES = ("fast/figure1.py", "fast/figure2.py")
# Scales of folders in results/measured, the most telling first; scale `paper` has no suffix.
SUFFIXES = ("", "-window", "-medium", "-small")


class MeasuredSweep(NamedTuple):
    """What results/measured holds of one sweep."""

    manifest: Manifest
    runs: pd.DataFrame  # a row per run and replicate, as in runs.parquet
    store: Store

    @property
    def ended(self) -> list[Entry]:
        """The runs of which each seed has ended."""
        cells = self.store.ledger().keys()
        return [own for own in self.manifest.entries if cells >= set(own.cells)]


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


def comparison_of(name: str) -> Comparison:
    """Return what a paper prints of a sweep, which may be nothing, by the sweep's name."""
    path = experiment_file(name).removesuffix(".py")
    module = import_module(path.replace("/", "."))
    return getattr(module, "COMPARISON", None) or Comparison(sweep=module.SWEEP)


def read_sweep(folder: Path) -> MeasuredSweep:
    """Read a sweep's folder, with the statistics that printed numbers and claims name."""
    store = Store(folder)
    manifest = store.manifest()
    named = comparison_of(manifest.name).statistics
    return MeasuredSweep(manifest, make_runs_table(store, named=named), store)


@cache
def sweeps() -> dict[str, MeasuredSweep]:
    """Return every sweep in results/measured by its folder's name, in natural order."""
    names = [store.path.name for store in find_sweeps(MEASURED)]
    return {
        name: read_sweep(MEASURED / name) for name in sorted(names, key=_natural_order)
    }


def _natural_order(name):
    """Return a sort key that puts table 10 behind table 9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part) if part.isdigit() else 0, part) for part in parts]


@cache
def compared(name: str, statistic: str = "") -> Compared:
    """Return a sweep's entries beside the printed numbers.

    Args:
        name: The sweep's folder in results/measured.
        statistic: The statistic to compare; empty for the table's own.
    """
    sweep = sweeps()[name]
    comparison = comparison_of(sweep.manifest.name)
    return Compared.of(comparison, sweep.runs, sweep.manifest, statistic)
