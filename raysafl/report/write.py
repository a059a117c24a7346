"""write."""

from collections.abc import Sequence

import pandas as pd

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.cells import aggregate, compare
from raysafl.report.analysis.evidence import judge, paired
from raysafl.report.analysis.layout import Layout
from raysafl.report.figures.curves import curves, q_curves
from raysafl.report.figures.heatmap import heatmap
from raysafl.report.figures.pareto import pareto
from raysafl.report.figures.participation import rasters
from raysafl.report.pages.html import Picture
from raysafl.report.pages.markdown import markdown
from raysafl.report.pages.page import Report, page
from raysafl.storage.files import atomic_write
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location
from raysafl.storage.store import Store

ELSEWHERE = "The numbers are in the table."
ABOUT = {  # file: section, what a reader who cannot see it is told, what stands below it
    "curves": (
        "Curves",
        "Lines of test accuracy over rounds, one panel per place, one line per method. ",
        "Test accuracy of the global model after each evaluated round.",
    ),
    "heatmap": (
        "Heat map",
        "The table as coloured cells with numbers. ",
        "The table's numbers, without spread.",
    ),
    "pareto": (
        "Pareto plots",
        "Points of accuracy against cost, one panel per problem and cost. ",
        "A problem is what one cannot choose: data, model, rounds, who comes by itself. Dotted: "
        "the best that can be had for at most that cost.",
    ),
    "q": (
        "q over rounds",
        "Lines of the probability of an enforced round, over rounds. ",
        "The adaptive policies' probability of an enforced round.",
    ),
    "participation": (
        "Participation",
        "Rasters of clients by rounds, marked where a client came; bars of each client's share. ",
        "Who came, for the first run of each policy; a round of the server alone has a cohort too, "
        "which was not asked to train.",
    ),
}


def load(store: Store) -> tuple[Manifest, pd.DataFrame, pd.DataFrame]:
    """A sweep's manifest, its `rounds/` and its `runs.parquet`.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    return store.manifest(), store.rounds(), store.runs()


def write_report(store: Store) -> list[Location]:
    """Write `table.md`, `report.html` and the figures that the sweep has numbers for.

    `curves.png` (`curves-2.png`, ... if many), `heatmap.png`, `pareto.png`, `q.png` and
    `participation.png`. Works while runs are missing. Figures of an earlier report that are not
    made again go.

    Returns:
        The files written, the table first.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    manifest, rounds, runs = load(store)
    layout = Layout.of(manifest)
    versus, shown = improvements(runs, manifest)
    shown_layout = Layout.of(shown)
    own = aggregate(runs, manifest)
    cells = judge(compare(aggregate(versus, shown), shown), shown)
    drawn: dict[str, Sequence[bytes | None]] = {
        "curves": curves(rounds, manifest, layout, runs),
        "heatmap": [heatmap(cells, shown, shown_layout)],
        "pareto": [pareto(own, runs, manifest, layout)],
        "q": q_curves(rounds, manifest, layout, runs),
        "participation": [rasters(rounds, runs, manifest, layout)],
    }
    pictures = {ABOUT[kind][0]: _pictures(kind, pages) for kind, pages in drawn.items()}
    report = Report(
        manifest=manifest,
        runs=runs,
        layout=layout,
        shown=shown,
        shown_layout=shown_layout,
        versus=versus,
        cells=cells,
        pairs=paired(runs, manifest, layout),
        pictures=pictures,
    )
    files = {"table.md": markdown(runs, manifest).encode(), "report.html": page(report).encode()}
    files |= {picture.name: picture.png for part in pictures.values() for picture in part}
    for kind in ABOUT:
        for old in [store.path / f"{kind}.png", *store.path.glob(f"{kind}-[0-9]*.png")]:
            if old.name not in files:
                old.unlink(missing_ok=True)
    for name, content in files.items():
        atomic_write(store.path / name, content)
    return [store.path / name for name in files]


def _pictures(kind: str, pages: Sequence[bytes | None]) -> list[Picture]:
    _, alt, caption = ABOUT[kind]
    names = [f"{kind}.png", *(f"{kind}-{i + 2}.png" for i in range(len(pages)))]
    made = zip(names, pages, strict=False)
    return [Picture(name, png, alt + ELSEWHERE, caption) for name, png in made if png]
