"""Improvements over a baseline: differences of runs with equal seeds."""

import pandas as pd

from raysafl.report.analysis.entries import LEVEL, LEVEL_STATISTIC, statistics
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Entry, Manifest


def improvements(
    runs: pd.DataFrame, manifest: Manifest
) -> tuple[pd.DataFrame, Manifest]:
    """Replace the runs of a table with `minus` by their improvements over the baseline.

    Each statistic of a replicate becomes its difference to the same replicate of the
    baseline: the entry with the same labels but those of `minus`. Both have the same
    seed, and so the same cohorts. The baseline's own entries are left out. A replicate
    whose baseline has not finished is left out as well, and so counts as missing.

    Args:
        runs: the rows of `runs.parquet`.
        manifest: the sweep.

    Returns:
        The runs and the manifest of the table; unchanged if the table has no `minus`.
    """
    minus = manifest.table.minus
    if not minus:
        return runs, manifest
    # Entries are found by their labels, in any order of the axes.
    of_labels = {_labels_key(entry.labels): entry.run_id for entry in manifest.entries}
    base = {
        entry.run_id: of_labels[key]
        for entry in manifest.entries
        if (key := _labels_key(entry.labels | minus)) in of_labels
        and not _is_baseline(entry, manifest)
    }
    entries = [entry for entry in manifest.entries if entry.run_id in base]
    table = manifest.table.replace(minus={})
    manifest = manifest.replace(entries=entries, table=table)
    names = [n for n in {*manifest.known(runs), *statistics(table)} if n in runs]
    own = runs[runs["run_id"].isin(list(base))]
    if own.empty or not names:
        return own, manifest
    done = runs[runs["status"] == Status.FINISHED].set_index(["run_id", "replicate"])[
        names
    ]
    # The same replicate of the baseline has the same seed, and so the same cohorts.
    pairs = pd.MultiIndex.from_arrays([own["run_id"].map(base), own["replicate"]])
    kept = pairs.isin(done.index) | (own["status"] != Status.FINISHED).to_numpy()
    own = own[kept].copy()
    pairs = pairs[kept]
    # Whether a run has learnt is seen from its accuracy, not from its improvement.
    if LEVEL_STATISTIC in own:
        own[LEVEL] = own[LEVEL_STATISTIC]
    own[names] = own[names].astype(float) - done.reindex(pairs).to_numpy(float)
    return own, manifest


def _labels_key(labels: object) -> str:
    return repr(sorted(labels.items())) if isinstance(labels, dict) else ""


def _is_baseline(entry: Entry, manifest: Manifest) -> bool:
    """Return whether an entry is a baseline itself."""
    return all(
        entry.labels.get(axis) == value for axis, value in manifest.table.minus.items()
    )
