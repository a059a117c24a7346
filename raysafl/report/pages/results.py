"""The document on a sweep: its results, how certain they are, their cost and origin."""

import re
from collections.abc import Mapping, Sequence

from raysafl.core.text import count, printable
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages import sections
from raysafl.report.pages.answer import answer
from raysafl.report.pages.document import Document, Picture
from raysafl.report.pages.markdown import bullets
from raysafl.report.pages.origin import origin_facts
from raysafl.report.pages.over_settings import OVER_SETTINGS, over_settings
from raysafl.report.wording import LOST, as_markdown, scale_note, search_note

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
    facts = origin_facts(numbers.runs, manifest)
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
            SEED_BY_SEED: sections.methods(numbers),
            ENTRIES: sections.all_entries(numbers),
            **pictures,
            "Cost": sections.cost(numbers),
            # A tag in Markdown is one of HTML.
            "Notes": [
                re.sub(r"<(?=[A-Za-z/!?])", r"\<", printable(manifest.notes)).strip()
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
