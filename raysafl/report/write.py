"""Write a sweep's report: `table.md`, `report.html` and the figures."""

from collections.abc import Sequence

import pandas as pd

from raysafl.report.analysis.baseline import improvements
from raysafl.report.analysis.cells import aggregate, compare
from raysafl.report.analysis.evidence import add_verdicts, paired
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

# For each figure: the section of the page, the text for readers who cannot see the
# figure, and the caption.
ABOUT = {
    "curves": (
        "Curves",
        "Lines of test accuracy over rounds, one line per method, one panel for each combination "
        "of the other labels. ",
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
        "Each panel fixes data, model, rounds and availability; its points are the choices that "
        "remain. The dotted line shows the best accuracy that can be had for at most that cost.",
    ),
    "q": (
        "q over rounds",
        "Lines of the probability of an enforced round, over rounds. ",
        "The adaptive policies' probability of an enforced round.",
    ),
    "participation": (
        "Participation",
        "Rasters of clients by rounds, marked where a client came; bars of each client's share. ",
        "Which clients came, for the first run of each policy. A round in which only the server "
        "trained has a cohort as well, which was not asked to train.",
    ),
}


def read_sweep(store: Store) -> tuple[Manifest, pd.DataFrame, pd.DataFrame]:
    """Read a sweep's manifest, its rows and its `runs.parquet`.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    return store.manifest(), store.rounds(), store.runs()


def write_report(store: Store) -> list[Location]:
    """Write `table.md`, `report.html` and the figures that the sweep has numbers for.

    The figures are `curves.png` (with `curves-2.png` and so on if there are many
    panels), `heatmap.png`, `pareto.png`, `q.png` and `participation.png`. Runs may be
    missing. Figures of an earlier report that are not made again are deleted.

    Args:
        store: the folder of the sweep, with `runs.parquet`.

    Returns:
        The files written, the table first.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    manifest, rounds, runs = read_sweep(store)
    layout = Layout.of(manifest)
    versus, shown = improvements(runs, manifest)
    shown_layout = Layout.of(shown)
    own = aggregate(runs, manifest)
    cells = add_verdicts(compare(aggregate(versus, shown), shown), shown)
    drawn: dict[str, Sequence[bytes | None]] = {
        "curves": curves(rounds, manifest, layout, runs),
        "heatmap": [heatmap(cells, shown, shown_layout)],
        "pareto": [pareto(own, runs, manifest, layout)],
        "q": q_curves(rounds, manifest, layout, runs),
        "participation": [rasters(rounds, runs, manifest, layout)],
    }
    pictures = {
        ABOUT[kind][0]: _named_pictures(kind, pages) for kind, pages in drawn.items()
    }
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
    files = {
        "table.md": markdown(runs, manifest).encode(),
        "report.html": page(report).encode(),
    }
    files |= {
        picture.name: picture.png for part in pictures.values() for picture in part
    }
    # Figures of an earlier report that were not made again would show old results.
    for kind in ABOUT:
        for old in [store.path / f"{kind}.png", *store.path.glob(f"{kind}-[0-9]*.png")]:
            if old.name not in files:
                old.unlink(missing_ok=True)
    for name, content in files.items():
        atomic_write(store.path / name, content)
    return [store.path / name for name in files]


def _named_pictures(kind: str, pages: Sequence[bytes | None]) -> list[Picture]:
    """Name the pages of a figure and give them their texts."""
    _, alt, caption = ABOUT[kind]
    names = [f"{kind}.png", *(f"{kind}-{i + 2}.png" for i in range(len(pages)))]
    made = zip(names, pages, strict=False)
    return [Picture(name, png, alt + ELSEWHERE, caption) for name, png in made if png]
