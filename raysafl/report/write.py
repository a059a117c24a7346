"""Write a sweep's report: `table.md`, `report.html` and the figures."""

from collections import defaultdict
from pathlib import Path

from raysafl.report.analysis.numbers import Numbers
from raysafl.report.current import PAGE, page_end
from raysafl.report.figures.listed import FIGURES
from raysafl.report.figures.study import Study
from raysafl.report.figures.style import ON_SCREEN, to_png
from raysafl.report.pages.document import Picture
from raysafl.report.pages.html import html
from raysafl.report.pages.markdown import markdown
from raysafl.report.pages.origin import mlflow_text
from raysafl.report.pages.results import results_document
from raysafl.storage.paths import atomic_write
from raysafl.storage.store import Store


def write_report(store: Store) -> list[Path]:
    """Write `table.md`, `report.html` and the figures that the sweep has numbers for.

    The figures are those of `FIGURES`. Runs may be missing. Of a sweep of very many entries
    the first ones are shown one by one, and a sentence says how many. Figures of an earlier
    report that are not made again are deleted. The page ends with a digest of what the report
    was made from, which `is_current` compares.

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
    mlflow = mlflow_text(store)
    document = results_document(numbers, pictures, mlflow, len(store.lines().faults))
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
    for name in FIGURES:
        if f"{name}.png" not in files:
            (store.path / f"{name}.png").unlink(missing_ok=True)
    for name in sorted(files, key=lambda name: name == PAGE):
        atomic_write(store.path / name, files[name])
    return [store.path / name for name in files]


def _pictures(store: Store, numbers: Numbers) -> dict[str, list[Picture]]:
    """Draw the figures that the sweep has numbers for, by the titles of their sections."""
    checked = store.read()
    study = Study(numbers, checked.rows, checked.clients)
    manifest = numbers.manifest
    made = defaultdict[str, list[Picture]](list)
    for name, listed in FIGURES.items():
        with ON_SCREEN.used():
            figure = listed.draw(study, ON_SCREEN)
            if figure is None:
                continue
            png = to_png(figure)
        caption = listed.about(manifest)
        made[listed.section].append(Picture(f"{name}.png", png, caption))
    return made
