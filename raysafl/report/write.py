"""Write a sweep's report: `table.md`, `report.html` and the figures."""

from collections import defaultdict
from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.analysis.part import Part
from raysafl.report.current import PAGE, page_end
from raysafl.report.figures import over_settings
from raysafl.report.figures.curves import curves, enforcement_curves
from raysafl.report.figures.heatmap import heatmap
from raysafl.report.figures.pareto import pareto
from raysafl.report.figures.participation import raster_runs, rasters
from raysafl.report.figures.served import served
from raysafl.report.figures.style import to_png
from raysafl.report.pages.document import Picture
from raysafl.report.pages.html import html
from raysafl.report.pages.markdown import markdown
from raysafl.report.pages.origin import mlflow_text
from raysafl.report.pages.results import OVER_SETTINGS, results_document
from raysafl.report.wording import quality_text
from raysafl.storage.files import atomic_write
from raysafl.storage.manifest import Manifest
from raysafl.storage.paths import Location
from raysafl.storage.rows import of_runs, sorted_rows
from raysafl.storage.statistics import ACCURACY
from raysafl.storage.store import Store

ELSEWHERE = "The numbers are in the table."

# For each figure: the section of the page, the text for readers who cannot see the
# figure, and the caption. `_filled` fills in what the runs are judged by.
ABOUT = {
    "curves": (
        "Curves",
        "Lines of {quality} over rounds, one line per method, one panel for each combination "
        "of the other labels. ",
        "{meaning} after each evaluated round.",
    ),
    "heatmap": (
        "Heat map",
        "The table as coloured entries with numbers. ",
        "The table's numbers, without spread.",
    ),
    "pareto": (
        "Pareto plots",
        "Points of {value} against cost, one panel per problem and cost. ",
        "Each panel fixes data, model, rounds and availability; its points are the choices that "
        "remain. The dotted line shows the best {value} that can be had for at most that cost.",
    ),
    "enforce_prob": (
        "Probability of an enforced round",
        "Lines of the probability of an enforced round, over rounds. ",
        "The adaptive policies' probability of an enforced round.",
    ),
    "participation": (
        "Participation",
        "Rasters of clients by rounds, marked where a client came; bars of each client's share. ",
        "Which clients came, for the first run of each policy. A round in which only the server "
        "trained has a cohort as well, which was not asked to train.",
    ),
    "served": (
        "Who is served",
        "Points of each client's quality against the share of rounds in which it trained, one "
        "panel for each combination of the labels beside the method. ",
        "How good the global model is on each client's own kind of test samples, against how "
        "often the client has trained. Clients at 0 % never came.",
    ),
    "ranks": (
        OVER_SETTINGS,
        "A scale with the mean rank of each method. ",
        "Mean ranks. A bar joins methods of which no two are told apart.",
    ),
    "profiles": (
        OVER_SETTINGS,
        "Lines of the fraction of better scores over {value}, one for each method. ",
        "Performance profiles: the fraction of settings and seeds with a better {value}.",
    ),
}
# Figures of single entries, of which a part is drawn if there are very many.
OF_PART = ("curves", "heatmap", "enforce_prob")


def write_report(store: Store) -> list[Location]:
    """Write `table.md`, `report.html` and the figures that the sweep has numbers for.

    The figures are those of `ABOUT` (with `curves-2.png` and so on if there are many
    panels). Runs may be missing. Of a sweep of very many entries a part is shown one by
    one, and a sentence says which (`raysafl.report.analysis.part`). Figures of an earlier
    report that are not made again are deleted. The page ends with a digest of what the
    report was made from, which `is_current` compares.

    Args:
        store: the folder of the sweep, with `runs.parquet`.

    Returns:
        The files written, the table first.

    Raises:
        ValueError: the folder holds no sweep, or `runs.parquet` is missing or damaged.
    """
    # Taken before anything is read: if a file changes meanwhile, the report is not
    # current.
    digest = page_end(store)
    runs = store.runs()
    manifest = store.manifest()
    numbers = Numbers.of(runs, manifest)
    pictures = _pictures(store, numbers)
    document = results_document(numbers, pictures, mlflow_text(store))
    files = {
        "table.md": markdown(document).encode(),
        PAGE: html(document).encode() + digest,
    }
    files |= {
        picture.name: picture.png for some in pictures.values() for picture in some
    }
    # The page goes first and comes last, so that a page that is there was made together
    # with the table and the figures beside it, even if an earlier driver was killed.
    (store.path / PAGE).unlink(missing_ok=True)
    # Figures of an earlier report that were not made again would show old results.
    for kind in ABOUT:
        for old in [store.path / f"{kind}.png", *store.path.glob(f"{kind}-[0-9]*.png")]:
            if old.name not in files:
                old.unlink(missing_ok=True)
    for name in sorted(files, key=lambda name: name == PAGE):
        atomic_write(store.path / name, files[name])
    return [store.path / name for name in files]


def _pictures(store: Store, numbers: Numbers) -> dict[str, list[Picture]]:
    """Draw the figures that the sweep has numbers for, by the titles of their sections."""
    runs = numbers.runs
    manifest = numbers.manifest
    layout = numbers.layout
    part = numbers.part
    lines = Part.of(numbers.own, manifest, layout)
    checked = store.read()
    rounds, came = _rounds_to_draw(checked.rows, runs, lines.manifest, manifest)
    clients = sorted_rows(checked.clients, "clients").to_pandas()
    inside = runs["run_id"].isin(list(lines.entries["run_id"]))
    of_lines = (rounds, lines.manifest, lines.layout, runs[inside])
    drawn: dict[str, Sequence[bytes | None]] = {
        "curves": curves(*of_lines, note=lines.share, entries=lines.entries),
        "heatmap": [heatmap(part.entries, part.manifest, part.layout)],
        "pareto": [pareto(numbers.own, runs, manifest, layout)],
        "enforce_prob": enforcement_curves(*of_lines, note=lines.share),
        "participation": [rasters(came, runs, manifest, layout)],
        "served": [served(clients, runs, manifest, layout)],
    }
    methods = numbers.methods
    if methods.is_told:
        drawn["ranks"] = [to_png(over_settings.critical_difference(methods))]
        drawn["profiles"] = [to_png(over_settings.performance_profiles(methods))]
    pictures = defaultdict[str, list[Picture]](list)
    for kind, pages in drawn.items():
        note = part.note if kind in OF_PART else ""
        pictures[ABOUT[kind][0]] += _named_pictures(kind, pages, note, manifest)
    return pictures


def _rounds_to_draw(
    table: pa.Table, runs: pd.DataFrame, part: Manifest, manifest: Manifest
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of the runs of which curves are drawn, and those of rasters.

    Both may be few of very many. Who came takes most of the memory, and curves do not
    show it, so only the latter have it.

    Args:
        table: the rows of all runs but the damaged ones.
        runs: the rows of `runs.parquet`.
        part: the part of the sweep of which curves are drawn.
        manifest: the whole sweep.
    """
    there = set(table["run_id"].unique().to_pylist())
    lines = {entry.run_id for entry in part.entries} & there
    came = of_runs(table, raster_runs(runs, manifest, there))
    rounds = of_runs(table.drop_columns(["cohorts"]), lines)
    return sorted_rows(rounds).to_pandas(), sorted_rows(came).to_pandas()


def _filled(text: str, manifest: Manifest) -> str:
    """Fill what the runs are judged by into a text of `ABOUT`."""
    quality = quality_text(manifest)
    known = manifest.statistic(manifest.table.statistic)
    accuracy = known is None or known.column in ("", ACCURACY)
    value = "accuracy" if accuracy else manifest.table.statistic
    column = manifest.columns.get(manifest.quality)
    what = f" ({column.meaning})" if column else " of the global model"
    meaning = quality.capitalize() + what
    return text.format(quality=quality, value=value, meaning=meaning)


def _named_pictures(
    kind: str, pages: Sequence[bytes | None], note: str, manifest: Manifest
) -> list[Picture]:
    """Name the pages of a figure and give them their texts."""
    _, alt, caption = (_filled(text, manifest) for text in ABOUT[kind])
    names = [f"{kind}.png", *(f"{kind}-{i + 2}.png" for i in range(len(pages)))]
    made = zip(names, pages, strict=False)
    text = f"{caption} {note.replace('`', '')}".strip()
    return [Picture(name, png, alt + ELSEWHERE, text) for name, png in made if png]
