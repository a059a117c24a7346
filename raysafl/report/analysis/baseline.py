"""Improvements over a baseline: differences of runs with equal seeds."""

from collections.abc import Mapping

import pandas as pd

from raysafl.report.analysis.entries import LEVEL, LEVEL_STATISTIC, statistics
from raysafl.storage.ledger import Status
from raysafl.storage.manifest import Label, Manifest


def improvements(
    runs: pd.DataFrame, manifest: Manifest
) -> tuple[pd.DataFrame, Manifest]:
    """Replace the runs of a table with `minus` by their improvements over the baseline.

    Each statistic of a replicate becomes its difference to the same replicate of the
    baseline: the entry with the same labels but those of `minus`. Both have the same
    seed, and so the same cohorts. The baseline's own entries are left out. A replicate
    whose baseline has not finished is left out as well, and so counts as missing.

    Returns:
        The runs and the manifest of the table; unchanged if the table has no `minus`.
    """
    minus = manifest.table.minus
    if not minus:
        return runs, manifest
    found = zip(manifest.entries, baselines(manifest, minus), strict=True)
    base = {entry.run_id: run_id for entry, run_id in found if run_id}
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


def baselines(manifest: Manifest, labels: Mapping[str, Label]) -> list[str]:
    """Return the run that each entry of a sweep differs from in these labels alone.

    It is empty for entries that have these labels themselves, and where there is no such
    run.

    Args:
        labels: the labels of a baseline on some axes.
    """
    # Entries are found by their labels, in any order of the axes.
    keys = [frozenset(entry.labels.items()) for entry in manifest.entries]
    of_key = dict(zip(keys, (entry.run_id for entry in manifest.entries), strict=True))
    others = [frozenset({**e.labels, **labels}.items()) for e in manifest.entries]
    pairs = zip(keys, others, strict=True)
    return ["" if own == other else of_key.get(other, "") for own, other in pairs]
