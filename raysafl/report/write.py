"""A sweep's report: its document, and the files `table.md`, `report.html` and figures."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from raysafl.core.text import count, printable
from raysafl.report.analysis.numbers import Numbers, Study
from raysafl.report.current import PAGE, page_end
from raysafl.report.figures.listed import FIGURES
from raysafl.report.figures.style import ON_SCREEN, to_png
from raysafl.report.pages import sections
from raysafl.report.pages.document import Document, Picture, bullets, html, markdown
from raysafl.report.pages.methods import OVER_SETTINGS, answer, methods, over_settings
from raysafl.report.wording import LOST, as_markdown, scale_note, search_note
from raysafl.storage.paths import atomic_write
from raysafl.storage.store import Store

# The titles of the sections that a page shows when they are asked for.
SEED_BY_SEED = "Methods, seed by seed"
ENTRIES = "All entries"
CONFIGURATION = "Configuration"


def results_document(
    numbers: Numbers,
    pictures: Mapping[str, Sequence[Picture]] | None = None,
    mlflow: str = "",
    unreadable: int = 0,
) -> Document:
    """Put the sections of a sweep's report together.

    Args:
        pictures: the figures by the titles of their sections.
        mlflow: where MLflow shows the sweep, as Markdown; empty if that is not known.
        unreadable: how many lines of the ledger cannot be read.
    """
    manifest = numbers.manifest
    command = manifest.command
    pictures = dict(pictures or {})
    lines = count(unreadable, "line")
    why = "and `raysafl verify` says why"
    lost = f" **{lines} of the ledger cannot be read**, {why}." if unreadable else ""
    facts = sections.origin_facts(numbers.runs, manifest)
    ends = f"{_ends_text(numbers)}{lost} {search_note(manifest)}".strip()
    return Document(
        title=manifest.title or manifest.name,
        warning=scale_note(manifest),
        folded=[SEED_BY_SEED, ENTRIES, CONFIGURATION],
        sections={
            "Answer": [answer(numbers), ends],
            "Table": sections.table(numbers),
            "Seeds that have not finished": sections.losses(numbers),
            "Curves": pictures.pop("Curves", []),
            "Heat map": pictures.pop("Heat map", []),
            OVER_SETTINGS: [*over_settings(numbers), *pictures.pop(OVER_SETTINGS, [])],
            SEED_BY_SEED: methods(numbers),
            ENTRIES: sections.all_entries(numbers),
            **pictures,
            "Cost": sections.cost(numbers),
            # A tag in Markdown is one of HTML.
            "Notes": [
                re.sub(r"<(?=[A-Za-z/!?])", "&lt;", printable(manifest.notes)).strip()
            ],
            CONFIGURATION: sections.configuration(numbers.runs),
            "How it was made": [
                bullets(f"{name}: {value}" for name, value in facts.items()),
                f"To run it again:\n\n```sh\n{command}\n```" if command else "",
                mlflow,
            ],
        },
    )


def _ends_text(numbers: Numbers) -> str:
    """Say how many runs there are, and how their seeds ended."""
    manifest = numbers.manifest
    sums = {name: int(numbers.entries[name].sum()) for name in ("replicates", *LOST)}
    done = sums.pop("replicates")
    ends = [f"{done:,} seed{'s' if done != 1 else ''} finished"]
    ends += [f"**{n:,} {name}**" for name, n in sums.items() if n]
    ids = {entry.run_id for entry in manifest.entries}
    begun = ids & set(numbers.runs["run_id"]) if len(numbers.runs) else set()
    name = as_markdown(manifest.name)
    return f"Sweep {name}, {len(begun)} of {len(ids)} runs: {', '.join(ends)}."


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
    mlflow = sections.mlflow_text(store)
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
