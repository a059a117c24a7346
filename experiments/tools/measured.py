"""What results/measured holds, beside the printed numbers: read once, for reproduction.py."""

import re
from functools import cache
from pathlib import Path

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.cells import aggregate, compare
from raysafl.report.analysis.evidence import judge
from raysafl.storage.runs_table import gather
from raysafl.storage.store import find_sweeps

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "results" / "measured"
PAPERS = ("safari", "fast", "fsl")


def experiment_file(name):
    """Return the path of the file that defines a sweep, relative to the repository.

    A paper's sweeps carry its name in front (`safari_table8_mnist`), where the files have a
    folder: `experiments/safari/table8_mnist.py`. Other sweeps are in `experiments/studies`.
    """
    paper, _, item = name.partition("_")
    if paper in PAPERS and (ROOT / "experiments" / paper / f"{item}.py").is_file():
        return f"experiments/{paper}/{item}.py"
    return f"experiments/studies/{name}.py"


@cache
def sweeps():
    """Manifest, runs and store of every sweep in results/measured."""
    stores = sorted(find_sweeps(MEASURED), key=lambda store: _natural(store.path.name))
    return {s.path.name: (s.manifest(), gather(s), s) for s in stores}


def _natural(name):
    """Table 10 behind table 9."""
    return [(int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


@cache
def judged(name, statistic=""):
    """The table's cells beside the printed numbers, and the manifest they belong to."""
    manifest, runs, _ = sweeps()[name]
    runs, shown = improvements(runs, manifest)
    if statistic:
        shown = shown.replace(table=shown.table.replace(statistic=statistic))
    return judge(compare(aggregate(runs, shown), shown), shown), shown
