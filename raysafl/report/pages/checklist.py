"""What a reviewer asks about a sweep: seeds, spreads, choices, compute, software, data."""

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from raysafl.core.text import count, duration
from raysafl.report.analysis.numbers import Numbers
from raysafl.report.pages.document import Block, Document, Facts, Lines
from raysafl.report.pages.origin import origin_facts
from raysafl.report.pages.sections import entries_text
from raysafl.report.wording import search_note, spread_note, winner_text
from raysafl.storage.ledger import LedgerEntry

HARDWARE = ("host", "device", "versions", "commit")
# What a paper has to say beside it, and no stored result knows.
FOR_AUTHORS = (
    "What do the results not show: which data, models and kinds of participation were not tried?",
    "Under which licences are the data, and may they be used for this?",
    "What was computed besides this sweep, such as runs that were thrown away?",
)


def checklist_document(
    numbers: Numbers, ledger: Mapping[str, LedgerEntry], data: Mapping[str, str]
) -> Document:
    """Answer what conferences' reproducibility checklists ask about a sweep.

    Args:
        ledger: how each run ended, failed and damaged ones included, by run id.
        data: the SHA-256 of each dataset, or why it is not known, by the dataset's name.
    """
    manifest = numbers.manifest
    own = {i: e for i, e in ledger.items() if i in manifest.labels()}
    facts = origin_facts(numbers.runs, manifest)
    sections: dict[str, list[Block]] = {
        "Which seeds were used": [Facts(_seed_counts(own))],
        "What the bars show": [
            f"{entries_text(numbers)} The replicates of a run differ in all "
            "that is drawn with their seeds: the initial model (unless it starts at zero), the "
            f"clients that come, the batches{_also_partitions(own)}.",
            spread_note(numbers.entries, numbers.shown.table),
        ],
        "How settings were chosen, and on which data": _choices(numbers, own),
        "What it took to compute": [Facts(_compute(own, facts))],
        "On which machines, with which software": [
            Facts({name: facts[name] for name in HARDWARE if name in facts})
        ],
        "Which data": [Facts(data)],
        "How to repeat it": [f"```sh\n{manifest.command}\n```"]
        if manifest.command
        else [],
        "What only the authors can answer": [Lines(FOR_AUTHORS)],
    }
    return Document(
        title=f"Reproducibility checklist of {manifest.title or manifest.name}",
        lead="Made by `raysafl report --checklist` from what is stored.",
        sections=sections,
    )


def _seed_counts(ledger: Mapping[str, LedgerEntry]) -> dict[str, str]:
    """Say how many runs have which seeds."""
    ends = [
        (e.seeds.seed, e.seeds.seed + e.seeds.replicates - 1) for e in ledger.values()
    ]
    return {
        f"seed {first}" if first == last else f"seeds {first} to {last}": count(
            n, "run"
        )
        for (first, last), n in Counter(ends).most_common()
    }


def _also_partitions(ledger: Mapping[str, LedgerEntry]) -> str:
    """Say whether replicates also differ in who holds which samples."""
    several = {
        entry.config.get("data", {}).get("partition_seeds") or 1
        for entry in ledger.values()
    }
    if several <= {1}:
        return "; all of a run share one partition of the data"
    numbers = " or ".join(str(n) for n in sorted(several))
    return f", and the partition of the data, of which each run has {numbers}"


def _choices(numbers: Numbers, ledger: Mapping[str, LedgerEntry]) -> list[Block]:
    """Say what was chosen by results, and by which samples."""
    manifest = numbers.manifest
    if manifest.searched_by:
        texts = [search_note(manifest)]
    else:
        texts = [
            "The settings were listed before anything ran, and results are shown for all of them."
        ]
    if numbers.winner:
        texts.append(winner_text(numbers.winner, manifest))
    held = [
        bool(entry.config.get("data", {}).get("validation"))
        for entry in ledger.values()
    ]
    texts.append(
        f"{sum(held)} of {count(len(held), 'run')} hold validation samples back."
    )
    return [" ".join(texts)]


def _compute(
    ledger: Mapping[str, LedgerEntry], facts: Mapping[str, str]
) -> dict[str, str]:
    """Add up the time of all runs, by how they ended."""
    table = pd.DataFrame(
        [(entry.status.value, entry.seconds or 0.0) for entry in ledger.values()],
        columns=["status", "seconds"],
    )
    sums = table.groupby("status")["seconds"].agg(["size", "sum"])
    spent = {
        f"{status} runs": f"{int(row['size']):,}, {duration(float(row['sum']))}"
        for status, row in sums.iterrows()
    }
    both = {"all runs": f"{len(table):,}, {duration(float(table['seconds'].sum()))}"}
    more = {name: facts[name] for name in ("local steps", "traffic") if name in facts}
    return spent | both | more
