"""What results/measured holds, beside the printed numbers: read once, for reproduction.py."""

import re
from functools import cache
from pathlib import Path

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.cells import aggregate, compare
from raysafl.report.analysis.evidence import judge
from raysafl.storage.runs_table import gather
from raysafl.storage.store import find_sweeps

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "results" / "measured"


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
